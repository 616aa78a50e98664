"""The timings at the end of an answer."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from antiphon.core.continuity import Continuity
from antiphon.orchestrator.api import Timings


def timings_table(timings: Timings) -> Group:
    """Times to the first text, audio and image and RTF in a line, as far as there are any, and how
    playback went; below it a row for each stage.
    """
    measures = (
        ("TTFT", timings.ttft_s, " s"),
        ("TTFA", timings.ttfa_s, " s"),
        ("TTFI", timings.ttfi_s, " s"),
        ("RTF", timings.rtf, ""),
        ("total", timings.total_s, " s"),
        ("audio", timings.audio_s or None, " s"),
    )
    shown = [
        f"{name} {_number(value)}{unit}" for name, value, unit in measures if value is not None
    ]
    table = Table()
    table.add_column("stage")
    for column in ("waited s", "ran s", "RTF", "tokens"):
        table.add_column(column, justify="right")
    for name, stage in timings.stages.items():
        # From its input to its last output: a stage that answers at once ran for no time at all.
        took = stage.queue_s + stage.run_s
        rtf = took / timings.audio_s if timings.audio_s > 0 else None
        row = (_number(stage.queue_s), _number(stage.run_s), _number(rtf), str(stage.tokens))
        table.add_row(name, *row)
    lines = [Text("   ".join(shown), style="bold")]
    if timings.continuity is not None:
        lines.append(Text(f"playback: {playback(timings.continuity)}"))
    return Group(*lines, table)


def playback(continuity: Continuity) -> str:
    """What a listener heard: "continuous", or how long the worst gap was and how many there were.

    Silences too short to count are none.
    """
    if continuity.continuous:
        return "continuous"
    gaps = "1 gap" if continuity.gaps == 1 else f"{continuity.gaps} gaps"
    return f"worst gap {_number(continuity.worst_underrun_s)} s ({gaps})"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
