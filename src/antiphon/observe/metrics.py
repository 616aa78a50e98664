"""Metrics of requests: an observer that keeps them in a Prometheus registry of its own.

What a request costs is paid once, when it ends: nothing is done for each token while it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from antiphon.errors import DeadlineExceededError, StageInputTimeout
from antiphon.observe import table
from antiphon.observe.exposition import families_of
from antiphon.observe.families import Family
from antiphon.observe.record import EdgeSpan, StageSpan, Timeline
from antiphon.observe.table import Kind, Metric, Source

FINISHED = frozenset({"stop", "length"})  # outcomes
_TIMEOUTS = frozenset({DeadlineExceededError.code, StageInputTimeout.code})
_KEPT = (Source.REQUESTS, Source.STAGES)


class Metrics:
    """An `Observer`. Belongs to the event loop's thread; `model_name` is what callers know."""

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name
        self._registry = CollectorRegistry()
        self._running: set[str] = set()
        self._waiting: set[str] = set()
        kept = [metric for metric in table.TABLE if metric.source in _KEPT]
        kept.append(table.UNANSWERED)
        self._counters = {m: self._counter(m) for m in kept if m.kind is Kind.COUNTER}
        self._histograms = {m: self._histogram(m) for m in kept if m.kind is Kind.HISTOGRAM}
        for metric, uids in ((table.RUNNING, self._running), (table.WAITING, self._waiting)):
            gauge = Gauge(*_named(metric), metric.all_labels, registry=self._registry)
            gauge.labels(model_name).set_function(uids.__len__)

    def families(self) -> list[Family]:
        """All that there is now."""
        return families_of(self._registry)

    def __len__(self) -> int:
        """Requests that are running."""
        return len(self._running)

    def check_integrity(self) -> None:
        """Raise AssertionError if a request waits that does not run."""
        if not self._waiting <= self._running:
            raise AssertionError("a request is counted as waiting that is over")

    # --- the observer -------------------------------------------------------------------------

    def began(self, uid: str, path: tuple[str, ...]) -> None:
        self._running.add(uid)
        self._waiting.add(uid)

    def first_output(self, uid: str) -> None:
        self._waiting.discard(uid)

    def refused(self, code: str) -> None:
        self._count(table.REJECTIONS, 1, code)

    def ended(self, timeline: Timeline) -> None:
        self._running.discard(timeline.id)
        self._waiting.discard(timeline.id)
        self._outcome(timeline)
        self._text(timeline)
        self._sound(timeline)
        for span in timeline.stages:
            self._stage(span)
        for crossing in timeline.edges:
            self._edge(crossing)

    def unanswered(self, stage: str, replica: int) -> None:
        """A stage gave no figures for a scrape."""
        self._count(table.UNANSWERED, 1, stage, str(replica))

    # --- parts --------------------------------------------------------------------------------

    def _outcome(self, timeline: Timeline) -> None:
        entry, outcome, cause = timeline.entry, timeline.outcome, timeline.cause or "unknown"
        self._count(table.REQUESTS, 1, entry, outcome)
        if outcome == "error":
            self._count(table.FAILURES, 1, cause)
            if cause in _TIMEOUTS:
                self._count(table.TIMEOUTS, 1, cause)
        elif outcome == "abort":
            self._count(table.ABORTS, 1, cause)
        elif outcome in FINISHED:
            self._observe(table.E2EL, [timeline.total_s], entry)
            self._observe(table.RTF, _known(timeline.rtf), entry)

    def _text(self, timeline: Timeline) -> None:
        entry, arrivals = timeline.entry, timeline.text_s
        self._count(table.PROMPT_TOKENS, timeline.prompt_tokens, entry)
        self._count(table.OUTPUT_TOKENS, timeline.output_tokens, entry)
        self._observe(table.TTFT, _known(timeline.ttft_s), entry)
        self._observe(table.TTFI, _known(timeline.ttfi_s), entry)
        self._observe(table.ITL, _gaps(at for at, _ in arrivals), entry)
        if behind := sum(tokens for _, tokens in arrivals[1:]):
            self._observe(table.TPOT, [(arrivals[-1][0] - arrivals[0][0]) / behind], entry)

    def _sound(self, timeline: Timeline) -> None:
        entry, playback = timeline.entry, timeline.playback
        if playback is None:
            return
        self._count(table.AUDIO, playback.audio_s, entry)
        self._observe(table.TTFA, _known(timeline.ttfa_s), entry)
        self._observe(table.AUDIO_GAP, _gaps(at for at, _ in timeline.audio_s), entry)
        self._observe(table.UNDERRUN, [playback.total_underrun_s], entry)
        self._count(table.CONTINUOUS, int(playback.continuous), entry)

    def _stage(self, span: StageSpan) -> None:
        place = (span.stage, str(span.replica))
        self._count(table.STAGE_TOKENS, span.tokens, *place)
        if span.first_s is None:
            return
        if span.input_s is not None:
            self._observe(table.STAGE_QUEUE, [span.first_s - span.input_s], *place)
        if span.last_s is not None:
            self._observe(table.STAGE_RUN, [span.last_s - span.first_s], *place)

    def _edge(self, crossing: EdgeSpan) -> None:
        edge = crossing.edge
        self._count(table.EDGE_CHUNKS, crossing.chunks, edge)
        self._count(table.EDGE_BYTES, crossing.bytes, edge)
        self._observe(table.EDGE_FIRST, [crossing.first_s], edge)
        if crossing.first_used_s is not None:
            took_s = crossing.first_used_s - crossing.first_s
            self._observe(table.EDGE_TRANSFER, [took_s], edge)
            if crossing.cache:
                self._observe(table.KV_HANDOFF, [took_s], edge)

    # --- Prometheus ---------------------------------------------------------------------------

    def _counter(self, metric: Metric) -> Counter:
        return Counter(*_named(metric), metric.all_labels, registry=self._registry)

    def _histogram(self, metric: Metric) -> Histogram:
        return Histogram(
            *_named(metric), metric.all_labels, registry=self._registry, buckets=metric.buckets
        )

    def _count(self, metric: Metric, amount: float, *labels: str) -> None:
        self._counters[metric].labels(self.model_name, *labels).inc(amount)

    def _observe(self, metric: Metric, values: Iterable[float], *labels: str) -> None:
        series = self._histograms[metric].labels(self.model_name, *labels)
        for value in values:
            series.observe(value)


def _named(metric: Metric) -> tuple[str, str]:
    return metric.full_name, metric.help


def _known(value: float | None) -> list[float]:
    return [] if value is None else [value]


def _gaps(arrivals: Iterable[float]) -> Iterator[float]:
    return (later - earlier for earlier, later in pairwise(arrivals))
