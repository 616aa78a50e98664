"""Tells observers of requests, and makes the record of each from the flow that carried it."""

from __future__ import annotations

import time
from collections.abc import Mapping

from antiphon.errors import AntiphonError
from antiphon.observe.record import EdgeSpan, Observer, Playback, StageSpan, Timeline
from antiphon.orchestrator.deliveries import Crossing
from antiphon.orchestrator.flow import Flow
from antiphon.orchestrator.gathered import Unit
from antiphon.orchestrator.replica import Replica
from antiphon.pipeline.topology import Edge


class Observers:
    """All who want to know. Runs on the event loop's thread."""

    def __init__(self) -> None:
        self._all: list[Observer] = []

    def add(self, observer: Observer) -> None:
        self._all.append(observer)

    def began(self, flow: Flow) -> None:
        path = tuple(stage.name for stage in flow.plan.path)
        for observer in self._all:
            observer.began(flow.plan.uid, path)

    def first_output(self, flow: Flow) -> None:
        for observer in self._all:
            observer.first_output(flow.plan.uid)

    def refused(self, error: AntiphonError) -> None:
        for observer in self._all:
            observer.refused(error.code)

    def ended(
        self,
        flow: Flow,
        replicas: Mapping[str, Replica],
        outcome: str,
        cause: str | None,
        message: str | None,
    ) -> Timeline:
        """The request's record, which every observer has been given."""
        timeline = _timeline(flow, replicas, outcome, cause, message)
        for observer in self._all:
            observer.ended(timeline)
        return timeline


def _timeline(
    flow: Flow,
    replicas: Mapping[str, Replica],
    outcome: str,
    cause: str | None,
    message: str | None,
) -> Timeline:
    plan, gathered, start = flow.plan, flow.gathered, flow.gathered.started_s
    timings, usage = flow.timings, flow.usage
    playback = None
    if timings.continuity is not None:
        heard = timings.continuity
        playback = Playback(
            audio_s=heard.audio_s,
            worst_underrun_s=heard.worst_underrun_s,
            total_underrun_s=heard.total_underrun_s,
            gaps=heard.gaps,
            continuous=heard.continuous,
        )
    total_s = flow.clock() - start
    return Timeline(
        id=plan.uid,
        label=_valid(plan.request.request_id),
        pipeline=plan.topology.name,
        entry=plan.request.entry,
        started_unix_s=time.time() - total_s,
        total_s=total_s,
        outcome=outcome,
        cause=cause,
        message=_valid(message),
        prompt_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        ttft_s=timings.ttft_s,
        ttfa_s=timings.ttfa_s,
        ttfi_s=timings.ttfi_s,
        playback=playback,
        rtf=timings.rtf,
        text_s=tuple(gathered.text_s),
        audio_s=tuple(gathered.audio_s),
        stages=tuple(
            _stage_span(replicas[stage], unit, start)
            for stage, units in flow.units.items()
            for unit in units
        ),
        edges=_edge_spans(flow, start),
        trace_headers=plan.request.trace_headers,
    )


def _stage_span(replica: Replica, unit: Unit, start: float) -> StageSpan:
    return StageSpan(
        stage=replica.stage,
        replica=replica.number,
        part=unit.part,
        submitted_s=unit.submitted_s - start,
        input_s=_since(start, unit.input_s),
        first_s=_since(start, unit.first_s),
        last_s=_since(start, unit.last_s),
        tokens=unit.tokens,
        finish=unit.finish,
    )


def _edge_spans(flow: Flow, start: float) -> tuple[EdgeSpan, ...]:
    edges = {edge.name: edge for edge in flow.plan.topology.edges}
    return tuple(
        _edge_span(flow, edges[name], part, crossing, start)
        for (name, part), crossing in flow.crossings.items()
    )


def _edge_span(flow: Flow, edge: Edge, part: int, crossing: Crossing, start: float) -> EdgeSpan:
    producers, consumers = flow.units[edge.producer], flow.units[edge.consumer]
    outputs = [consumers[p].first_s for p in crossing.consumer_parts]
    return EdgeSpan(
        edge=edge.name,
        producer=edge.producer,
        consumer=edge.consumer,
        part=part,
        first_s=crossing.first_s - start,
        last_s=crossing.last_s - start,
        chunks=crossing.chunks,
        bytes=crossing.bytes,
        cache=edge.kv is not None,
        consumer_parts=tuple(crossing.consumer_parts),
        producer_output_s=_since(start, producers[part].first_s),
        first_used_s=_since(start, crossing.first_used_s),
        last_used_s=_since(start, crossing.last_used_s),
        consumer_output_s=_since(start, min((s for s in outputs if s is not None), default=None)),
    )


def _since(start: float, moment: float | None) -> float | None:
    return None if moment is None else moment - start


def _valid(text: str | None) -> str | None:
    """As it can be written in UTF-8: a caller's label may hold half of a surrogate pair."""
    return None if text is None else text.encode(errors="replace").decode()
