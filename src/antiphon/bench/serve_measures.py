"""What a run's answers come to. Only completed ones count, but for the counts of the others."""

from __future__ import annotations

import collections
import enum
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.bench.serve_answer import Answer, Ending
from antiphon.bench.serve_load import Run
from antiphon.core.continuity import CONTINUITY_LIMIT_S


class Section(enum.StrEnum):
    """Of the report."""

    ALL = ""
    TEXT = " Text Result "
    AUDIO = " Audio Result "


@dataclass(frozen=True, slots=True)
class Measure:
    """One of the things that are told of every answer; `values` in seconds, or without a unit."""

    key: str  # of options and result files
    name: str
    title: str
    section: Section
    values: Callable[[Answer], Iterable[float | None]]
    seconds: bool = True

    @property
    def scale(self) -> float:
        """From a value to what is printed and saved, which is in milliseconds if it is a time."""
        return 1000.0 if self.seconds else 1.0

    @property
    def label(self) -> str:
        return f"{self.name} (ms)" if self.seconds else self.name

    @property
    def suffix(self) -> str:
        """Of its keys in a result file."""
        return f"{self.key}_ms" if self.seconds else self.key


MEASURES = (
    Measure("e2el", "E2EL", "End-to-end Latency", Section.ALL, lambda a: (a.latency_s,)),
    Measure(
        "client_queue_time",
        "Client Queue Time",
        "Client-side Queueing",
        Section.ALL,
        lambda a: (a.queue_s,),
    ),
    Measure("ttft", "TTFT", "Time to First Token", Section.TEXT, lambda a: (a.ttft_s,)),
    Measure(
        "tpot",
        "TPOT",
        "Time per Output Token (excl. 1st token)",
        Section.TEXT,
        lambda a: (a.tpot_s,),
    ),
    Measure("itl", "ITL", "Inter-token Latency", Section.TEXT, lambda a: a.itl_s),
    Measure("ttfa", "TTFA", "Time to First Audio", Section.AUDIO, lambda a: (a.ttfa_s,)),
    Measure("rtf", "RTF", "Real-time Factor", Section.AUDIO, lambda a: (a.rtf,), seconds=False),
    Measure(
        "underrun",
        "Underrun",
        "Longest Underrun of an Answer",
        Section.AUDIO,
        lambda a: (None if a.continuity is None else a.continuity.worst_underrun_s,),
    ),
)
ONE_EACH = tuple(measure.key for measure in MEASURES if measure.key != "itl")
"""Those that an answer has one value of: what a goal can be set for."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of one measure, in its printed unit."""

    measure: Measure
    mean: float
    median: float
    std: float
    percentiles: tuple[tuple[float, float], ...]  # (which, value)


@dataclass(frozen=True, slots=True)
class Summary:
    """Of a run. Rates are over its whole time."""

    completed: int
    failed: int
    disconnected: int
    duration_s: float
    input_tokens: int
    output_tokens: int
    request_throughput: float
    request_goodput: float | None  # None: no goals
    output_throughput: float  # tokens of text per second
    total_throughput: float  # with those of prompts
    peak_output_throughput: float  # pieces of text in the best second, as vLLM counts it
    peak_concurrent: int  # completed ones that were under way at one time
    audio_s: float
    audio_throughput: float  # seconds of sound per second
    continuous_rate: float | None  # share without an underrun of over CONTINUITY_LIMIT_S
    gaps: int  # such underruns
    statistics: tuple[Statistics, ...]
    failures: tuple[tuple[str, int], ...]  # (error, how many), most frequent first


def summarize(
    run: Run, measures: Sequence[str], percentiles: Sequence[float], goals: Mapping[str, float]
) -> Summary:
    """`measures` and the keys of `goals` are keys of MEASURES; goals in the printed unit."""
    good = [answer for answer in run.answers if answer.ending is Ending.COMPLETED]
    failed = [answer for answer in run.answers if answer.ending is Ending.FAILED]
    heard = [answer.continuity for answer in good if answer.continuity is not None]
    input_tokens = sum(answer.prompt_tokens for answer in good)
    output_tokens = sum(answer.output_tokens for answer in good)
    audio_s = sum(answer.audio_s for answer in good)
    took_s = run.duration_s
    met = sum(_meets(answer, goals) for answer in good)
    return Summary(
        completed=len(good),
        failed=len(failed),
        disconnected=len(run.answers) - len(good) - len(failed),
        duration_s=took_s,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        request_throughput=len(good) / took_s,
        request_goodput=met / took_s if goals else None,
        output_throughput=output_tokens / took_s,
        total_throughput=(input_tokens + output_tokens) / took_s,
        peak_output_throughput=_peak_pieces(good),
        peak_concurrent=_peak_concurrent(good),
        audio_s=audio_s,
        audio_throughput=audio_s / took_s,
        continuous_rate=statistics.fmean(c.continuous for c in heard) if heard else None,
        gaps=sum(continuity.gaps for continuity in heard),
        statistics=_statistics(good, measures, percentiles),
        failures=tuple(collections.Counter(a.error for a in failed).most_common()),
    )


def limit_ms() -> float:
    """The longest underrun that still counts as continuous."""
    return CONTINUITY_LIMIT_S * 1000


def _statistics(
    answers: Sequence[Answer], measures: Sequence[str], percentiles: Sequence[float]
) -> tuple[Statistics, ...]:
    """A measure without a value is left out."""
    found = []
    for measure in MEASURES:
        values = [value * measure.scale for answer in answers for value in _known(measure, answer)]
        if measure.key in measures and values:
            found.append(
                Statistics(
                    measure,
                    mean=float(np.mean(values)),
                    median=float(np.median(values)),
                    std=float(np.std(values)),
                    percentiles=tuple((p, float(np.percentile(values, p))) for p in percentiles),
                )
            )
    return tuple(found)


def _known(measure: Measure, answer: Answer) -> list[float]:
    return [value for value in measure.values(answer) if value is not None]


def _meets(answer: Answer, goals: Mapping[str, float]) -> bool:
    """A measure that the answer has no value of is met, as in vLLM's."""
    return all(
        value * measure.scale <= goals[measure.key]
        for measure in MEASURES
        if measure.key in goals
        for value in _known(measure, answer)
    )


def _peak_pieces(answers: Sequence[Answer]) -> float:
    times = [
        at_s
        for answer in answers
        if answer.ttft_s is not None
        for at_s in np.cumsum([answer.start_s + answer.ttft_s, *answer.itl_s])
    ]
    if not times:
        return 0.0
    first_s = min(answer.start_s for answer in answers)
    return float(np.bincount(np.floor(np.array(times) - first_s).astype(np.int64)).max())


def _peak_concurrent(answers: Sequence[Answer]) -> int:
    """At equal times an end comes before a start."""
    changes = sorted(
        change
        for answer in answers
        for change in ((answer.start_s, 1), (answer.start_s + answer.latency_s, -1))
    )
    running = peak = 0
    for _, change in changes:
        running += change
        peak = max(peak, running)
    return peak
