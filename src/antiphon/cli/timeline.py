"""A request's timeline as lines of text: a bar for each part at each stage, and for each edge."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len, set_cell_size

from antiphon.observe.record import EdgeSpan, StageSpan, Timeline

WAIT, QUEUE, RUN, CROSS, FIRST, FAILED, ARRIVAL = "·", "░", "█", "─", "◆", "✗", "▪"
_MEANINGS = {
    WAIT: "waits for its input",
    QUEUE: "queued",
    RUN: "runs",
    CROSS: "under way on an edge",
    FIRST: "first output",
    FAILED: "failed",
    ARRIVAL: "arrives at the caller",
}
# For terminals whose encoding has nothing but ASCII.
PLAIN = str.maketrans(
    {WAIT: ".", QUEUE: ":", RUN: "#", CROSS: "-", FIRST: "*", FAILED: "x", ARRIVAL: "+", "└": "`"}
)
STYLES = {
    WAIT: "dim",
    QUEUE: "yellow",
    RUN: "green",
    CROSS: "cyan",
    FIRST: "bold magenta",
    FAILED: "bold red",
    ARRIVAL: "blue",
}
_HEADINGS = ("waited", "queued", "ran", "output")
_COLUMN = 9  # of each of them, in cells
_ENOUGH = 72  # narrower than that there is room for the bars alone
_TICK = 7  # cells between two ticks, at least

_Cells = list[str]


@dataclass(frozen=True, slots=True)
class _Axis:
    """Seconds to cells."""

    total_s: float
    cells: int

    def cell(self, at_s: float) -> int:
        share = at_s / self.total_s if self.total_s > 0 else 0.0
        return min(max(int(share * self.cells), 0), self.cells - 1)

    def paint(self, bar: _Cells, start_s: float, end_s: float, symbol: str) -> None:
        for cell in range(self.cell(start_s), self.cell(end_s) + 1):
            bar[cell] = symbol

    def ticks(self) -> str:
        """Moments at round distances, each at its cell."""
        apart = self.total_s * min(_TICK / self.cells, 1.0)
        if not apart > 0:
            return "0"
        power = 10.0 ** math.floor(math.log10(apart))
        step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= apart)
        line = ""
        for number in range(int(self.total_s / step) + 1):
            at_s = number * step
            label = f"{at_s:g}s" if self.total_s >= 1 else f"{at_s * 1000:g}ms"
            cell = self.cell(at_s)
            if cell + len(label) <= self.cells and (not line or cell > len(line)):
                line = line.ljust(cell) + (label if number else "0")
        return line


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    paint: Callable[[_Axis, _Cells], None]
    facts: Sequence[str] = field(default=("",) * len(_HEADINGS))


def draw(timeline: Timeline, width: int) -> list[str]:
    """The request in lines of at most `width` cells; a stage has a line for each of its parts.

    Narrower than about 24 cells the bars are cropped away before the names are.
    """
    rows = [*_rows(timeline)]
    names = min(max(len(row.name) for row in rows), max(width // 4, 12)) if rows else 0
    facts = _COLUMN * len(_HEADINGS) if width >= _ENOUGH else 0
    axis = _Axis(timeline.total_s, max(width - names - 1 - facts, 4))
    lines = [*_summary(timeline, width), ""]
    lines.append(_line("", names, axis, axis.ticks(), _HEADINGS if facts else ()))
    bars = []
    for row in rows:
        bar = [" "] * axis.cells
        row.paint(axis, bar)
        bars += bar
        lines.append(_line(row.name, names, axis, "".join(bar), row.facts if facts else ()))
    used = [f"{symbol} {text}" for symbol, text in _MEANINGS.items() if symbol in bars]
    lines += ["", *_listed(used, width)]
    return [_cropped(line.rstrip(), width) for line in lines]


def seconds(value: float | None) -> str:
    """A duration in few characters, with its unit."""
    if value is None:
        return ""
    if value < 0.9995:
        return f"{value * 1000:.1f}ms" if value < 0.09995 else f"{value * 1000:.0f}ms"
    return f"{value:.2f}s" if value < 99.995 else f"{value:.0f}s"


def ended(outcome: str, cause: str | None) -> str:
    """How a request ended, in words."""
    words = {"interrupt": "interrupted", "abort": "aborted", "error": "failed"}
    word = words.get(outcome, f"finished ({outcome})")
    return word if cause is None else f"{word} ({cause})"


def printable(text: str) -> str:
    """Text of others, without what would move a terminal's cursor."""
    return "".join(c if c.isprintable() else "?" for c in text)


# --- what is said above the bars --------------------------------------------------------------


def _summary(timeline: Timeline, width: int) -> list[str]:
    label = "" if timeline.label is None else f"   {printable(timeline.label)}"
    end = f"{ended(timeline.outcome, timeline.cause)} after {seconds(timeline.total_s)}"
    if timeline.message is not None:
        end += f": {printable(' '.join(timeline.message.split()))}"
    measures = [f"{timeline.prompt_tokens} tokens in, {timeline.output_tokens} out"]
    firsts = (("text", timeline.ttft_s), ("sound", timeline.ttfa_s), ("picture", timeline.ttfi_s))
    measures += [f"first {what} {seconds(at_s)}" for what, at_s in firsts if at_s is not None]
    if timeline.rtf is not None:
        measures.append(f"RTF {timeline.rtf:.2f}")
    if (heard := timeline.playback) is not None:
        gap = f"worst gap {seconds(heard.worst_underrun_s)} ({heard.gaps} in all)"
        measures.append(f"playback {'continuous' if heard.continuous else gap}")
    head = f"{timeline.entry} {timeline.pipeline}   {timeline.id}{label}"
    return [*_wrapped(head, width), *_wrapped(end, width), *_listed(measures, width)]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, 1), break_on_hyphens=False)


def _listed(items: Iterable[str], width: int) -> list[str]:
    """One behind the other; a line ends between two of them if it can."""
    bound = "   ".join(item.replace(" ", "\xa0") for item in items)
    return [line.replace("\xa0", " ") for line in _wrapped(bound, width)]


def _line(name: str, names: int, axis: _Axis, bar: str, facts: Iterable[str]) -> str:
    name = name if len(name) <= names else name[: names - 1] + "…"
    return f"{name:<{names}} {bar:<{axis.cells}}" + "".join(f"{f:>{_COLUMN}}" for f in facts)


def _cropped(line: str, width: int) -> str:
    return line if cell_len(line) <= width else set_cell_size(line, width)


# --- the rows ---------------------------------------------------------------------------------


def _rows(timeline: Timeline) -> Iterable[_Row]:
    for stage in dict.fromkeys(unit.stage for unit in timeline.stages):
        units = [unit for unit in timeline.stages if unit.stage == stage]
        for unit in units:
            yield _stage_row(unit, timeline.total_s, several=len(units) > 1)
        for name in dict.fromkeys(e.edge for e in timeline.edges if e.producer == stage):
            yield _edge_row(name, [edge for edge in timeline.edges if edge.edge == name])
    if timeline.text_s:
        tokens = sum(count for _, count in timeline.text_s)
        yield _arrivals("text", [at_s for at_s, _ in timeline.text_s], f"{tokens} tok")
    if timeline.audio_s:
        length = sum(size for _, size in timeline.audio_s)
        yield _arrivals("sound", [at_s for at_s, _ in timeline.audio_s], seconds(length))


def _stage_row(unit: StageSpan, total_s: float, *, several: bool) -> _Row:
    end_s = total_s if unit.last_s is None else unit.last_s
    first_s = end_s if unit.first_s is None else unit.first_s
    input_s = first_s if unit.input_s is None else unit.input_s

    def paint(axis: _Axis, bar: _Cells) -> None:
        axis.paint(bar, unit.submitted_s, input_s, WAIT)
        if unit.input_s is not None:
            axis.paint(bar, input_s, first_s, QUEUE)
        if unit.first_s is not None:
            axis.paint(bar, first_s, end_s, RUN)
            bar[axis.cell(first_s)] = FIRST
        if unit.finish == "error":
            bar[axis.cell(end_s)] = FAILED

    waited, queued, ran = input_s - unit.submitted_s, first_s - input_s, end_s - first_s
    facts = (
        seconds(waited) if waited > 0 else "",
        seconds(None if unit.input_s is None else queued),
        seconds(None if unit.first_s is None else ran),
        f"{unit.tokens}" if unit.tokens else "",
    )
    return _Row(f"{unit.stage} {unit.part}" if several else unit.stage, paint, facts)


def _edge_row(name: str, edges: Sequence[EdgeSpan]) -> _Row:
    """What crossed for all parts of the producer."""
    start_s = min(edge.first_s for edge in edges)
    end_s = max(max(edge.last_s, edge.last_used_s or 0.0) for edge in edges)

    def paint(axis: _Axis, bar: _Cells) -> None:
        axis.paint(bar, start_s, end_s, CROSS)
        for edge in edges:
            if edge.chunks:
                bar[axis.cell(edge.first_s)] = FIRST

    facts = ("", "", seconds(end_s - start_s), _size(sum(edge.bytes for edge in edges)))
    return _Row(f"└ {name}", paint, facts)


def _arrivals(name: str, moments: Sequence[float], amount: str) -> _Row:
    def paint(axis: _Axis, bar: _Cells) -> None:
        for at_s in moments:
            bar[axis.cell(at_s)] = ARRIVAL

    return _Row(name, paint, ("", "", "", amount))


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:.3g}GB"
