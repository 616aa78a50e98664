"""`antiphon bench stream`: time to the first sound and to the end, stream edges over full edges.

Two pipelines that differ only in the modes of their edges answer one question, N callers at once.
Each pair is one round of both; who goes first alternates, and a ratio is the median over the pairs
of what is the median over a round's callers. Times are those of `Timings`: seconds from the
request's submission. A comparison means something only while both give the same, so every reply is
held against one.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from antiphon.errors import StageError
from antiphon.orchestrator.api import OmniRequest, Reply

ENTRY = "chat"
QUESTION = "Where is Paris? Where is Rome? Where is Madrid?"  # `voice` answers in three sentences
SAME_AUDIO = 1e-3  # largest difference of two samples, -1 to 1, that still counts as the same


class Pipeline(Protocol):
    """What is measured: an `AsyncOmni`, or a stand-in for it."""

    async def generate(self, request: OmniRequest) -> Reply: ...


class Row(msgspec.Struct, frozen=True):
    """One number of callers. Times are medians in seconds; ratios are stream over full."""

    concurrency: int
    ttfa_stream_s: float
    ttfa_full_s: float
    ttfa_ratio: float
    total_stream_s: float
    total_full_s: float
    total_ratio: float
    ttfa_vs_one: float | None  # stream: over that of one caller; None if that was not measured
    underrun_seconds: float  # stream: the longest silence in any caller's playback
    continuous_rate: float  # stream: share of callers without a silence that counts
    rtf: float  # stream: median over the callers
    rounds: int
    same_output: bool  # every reply, both modes: equal text, audio equal within SAME_AUDIO
    audio_difference: float | None  # the largest; None: see `difference`, infinite


@dataclass(frozen=True, slots=True)
class Heard:
    """What one caller got."""

    ttfa_s: float
    total_s: float
    rtf: float
    worst_underrun_s: float
    continuous: bool
    difference: float  # from the reference, see `difference`


Round = list[Heard]


@dataclass(slots=True)
class Rounds:
    """All rounds of one number of callers; those of the same index are a pair."""

    concurrency: int
    stream: list[Round] = field(default_factory=list)
    full: list[Round] = field(default_factory=list)


OnRound = Callable[[str], None]  # told what is measured now


async def measure(
    stream: Pipeline,
    full: Pipeline,
    concurrency: Sequence[int],
    rounds: int,
    on_round: OnRound = lambda text: None,
) -> list[Row]:
    """A row for each number of callers. Raises what a request fails with."""
    on_round("warm-up")
    request = OmniRequest(entry=ENTRY, text=QUESTION)
    await stream.generate(request)
    reference = await full.generate(request)
    measured = []
    for callers in concurrency:
        taken = Rounds(callers)
        modes = [("stream", stream, taken.stream), ("full", full, taken.full)]
        for index in range(rounds):
            for name, pipeline, into in modes:
                on_round(f"{callers} at once, round {index + 1} of {rounds}, {name} edges")
                replies = await asyncio.gather(
                    *(pipeline.generate(request) for _ in range(callers))
                )
                into.append([_heard(reply, reference) for reply in replies])
            modes.reverse()
        measured.append(taken)
    return rows(measured)


def rows(measured: Sequence[Rounds]) -> list[Row]:
    """What the rounds say."""
    alone = next((_middle(r.stream, _ttfa) for r in measured if r.concurrency == 1), None)
    return [_row(taken, alone) for taken in measured]


def difference(reply: Reply, reference: Reply) -> float:
    """The largest difference of their samples; infinite if texts or lengths differ, or if a sample
    is no number.
    """
    if reply.text != reference.text or reply.audio is None or reference.audio is None:
        return math.inf
    if reply.audio.shape != reference.audio.shape:
        return math.inf
    largest = float(np.max(np.abs(reply.audio - reference.audio), initial=0.0))
    return largest if math.isfinite(largest) else math.inf


def table(measured: Sequence[Row]) -> Table:
    """The rows, and below them whether they may be compared."""
    made = Table(title="stream edges over full edges", box=SIMPLE_HEAD, padding=0)
    for column in _COLUMNS:
        made.add_column(column, justify="right")
    for row in measured:
        ttfa = (row.ttfa_stream_s, row.ttfa_full_s, row.ttfa_ratio)
        total = (row.total_stream_s, row.total_full_s, row.total_ratio)
        made.add_row(
            str(row.concurrency),
            *map(_number, (*ttfa, *total, row.ttfa_vs_one, row.underrun_seconds)),
            f"{row.continuous_rate:.0%}",
            _number(row.rtf),
        )
    made.caption = f"{_method(measured)}\n{_sameness(measured)}"
    return made


# --- parts ----------------------------------------------------------------------------------------


_COLUMNS = (
    "callers",
    "TTFA s\nstream",
    "TTFA s\nfull",
    "ratio",
    "total s\nstream",
    "total s\nfull",
    "ratio",
    "TTFA\nvs one",
    "worst\ngap s",
    "conti-\nnuous",
    "RTF",
)


def _number(value: float | None) -> str:
    """Three digits, more only if they stand before the point."""
    if value is None:
        return "-"
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def _heard(reply: Reply, reference: Reply) -> Heard:
    timings = reply.timings
    if timings.ttfa_s is None or timings.rtf is None or timings.continuity is None:
        raise StageError("the pipeline answered without sound; there is nothing to measure")
    return Heard(
        ttfa_s=timings.ttfa_s,
        total_s=timings.total_s,
        rtf=timings.rtf,
        worst_underrun_s=timings.continuity.worst_underrun_s,
        continuous=timings.continuity.continuous,
        difference=difference(reply, reference),
    )


def _row(taken: Rounds, alone_s: float | None) -> Row:
    streamed = [heard for each in taken.stream for heard in each]
    worst = max(heard.difference for each in [*taken.stream, *taken.full] for heard in each)
    ttfa_s = _middle(taken.stream, _ttfa)
    return Row(
        concurrency=taken.concurrency,
        ttfa_stream_s=round(ttfa_s, 4),
        ttfa_full_s=round(_middle(taken.full, _ttfa), 4),
        ttfa_ratio=round(_ratio(taken, _ttfa), 4),
        total_stream_s=round(_middle(taken.stream, _total), 4),
        total_full_s=round(_middle(taken.full, _total), 4),
        total_ratio=round(_ratio(taken, _total), 4),
        ttfa_vs_one=None if alone_s is None else round(ttfa_s / alone_s, 4),
        underrun_seconds=round(max(heard.worst_underrun_s for heard in streamed), 4),
        continuous_rate=round(statistics.fmean(heard.continuous for heard in streamed), 4),
        rtf=round(statistics.median(heard.rtf for heard in streamed), 4),
        rounds=len(taken.stream),
        same_output=worst <= SAME_AUDIO,
        audio_difference=round(worst, 7) if math.isfinite(worst) else None,
    )


def _ttfa(heard: Heard) -> float:
    return heard.ttfa_s


def _total(heard: Heard) -> float:
    return heard.total_s


def _middle(each: Sequence[Round], what: Callable[[Heard], float]) -> float:
    """The median over all callers of all rounds."""
    return statistics.median(what(heard) for heard_by in each for heard in heard_by)


def _ratio(taken: Rounds, what: Callable[[Heard], float]) -> float:
    pairs = zip(taken.stream, taken.full, strict=True)
    return statistics.median(_middle([a], what) / _middle([b], what) for a, b in pairs)


def _method(measured: Sequence[Row]) -> str:
    pairs = min(row.rounds for row in measured)
    return f"ratios: median over {pairs} pairs of rounds; last four columns: stream"


def _sameness(measured: Sequence[Row]) -> str:
    wrong = [str(row.concurrency) for row in measured if not row.same_output]
    if wrong:
        return f"OUTPUTS DIFFER with {', '.join(wrong)} callers: these rows compare nothing"
    return f"outputs: every text equal, audio equal within {SAME_AUDIO:g}, in both modes"
