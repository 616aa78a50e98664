"""The table of timings at the end of an answer."""

from __future__ import annotations

from rich.table import Table

from antiphon.orchestrator.api import Timings


def timings_table(timings: Timings) -> Table:
    """TTFT, TTFA and RTF above, a row for each stage below; times in seconds."""
    measures = [("TTFT", timings.ttft_s, " s"), ("TTFA", timings.ttfa_s, " s")]
    measures += [("RTF", timings.rtf, ""), ("total", timings.total_s, " s")]
    measures += [("audio", timings.audio_s or None, " s")]
    title = "   ".join(f"{name} {_number(value)}{unit}" for name, value, unit in measures)
    table = Table(title=title, title_style="bold")
    table.add_column("stage")
    for column in ("waited s", "ran s", "RTF", "tokens"):
        table.add_column(column, justify="right")
    for name, stage in timings.stages.items():
        rtf = stage.run_s / timings.audio_s if timings.audio_s > 0 else None
        row = (_number(stage.queue_s), _number(stage.run_s), _number(rtf), str(stage.tokens))
        table.add_row(name, *row)
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
