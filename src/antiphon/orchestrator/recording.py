"""Tells observers of requests, and makes the record of each from the flow that carried it."""

from __future__ import annotations

import time

from antiphon.errors import AntiphonError
from antiphon.observe.record import EdgeSpan, Observer, Playback, StageSpan, Timeline
from antiphon.orchestrator.flow import Flow
from antiphon.orchestrator.gathered import Unit


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

    def ended(self, flow: Flow, outcome: str, cause: str | None, message: str | None) -> Timeline:
        """The request's record, which every observer has been given."""
        timeline = _timeline(flow, outcome, cause, message)
        for observer in self._all:
            observer.ended(timeline)
        return timeline


def _timeline(flow: Flow, outcome: str, cause: str | None, message: str | None) -> Timeline:
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
        label=plan.request.request_id,
        pipeline=plan.topology.name,
        entry=plan.request.entry,
        started_unix_s=time.time() - total_s,
        total_s=total_s,
        outcome=outcome,
        cause=cause,
        message=message,
        prompt_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        ttft_s=timings.ttft_s,
        ttfa_s=timings.ttfa_s,
        playback=playback,
        rtf=timings.rtf,
        text_s=tuple(gathered.text_s),
        audio_s=tuple(gathered.audio_s),
        stages=tuple(
            _stage_span(stage, unit, start) for stage, units in flow.units.items() for unit in units
        ),
        edges=_edge_spans(flow, start),
        trace_headers=plan.request.trace_headers,
    )


def _stage_span(stage: str, unit: Unit, start: float) -> StageSpan:
    return StageSpan(
        stage=stage,
        part=unit.part,
        submitted_s=unit.submitted_s - start,
        input_s=unit.input_s - start,
        first_s=None if unit.first_s is None else unit.first_s - start,
        last_s=None if unit.last_s is None else unit.last_s - start,
        tokens=unit.tokens,
        finish=unit.finish,
    )


def _edge_spans(flow: Flow, start: float) -> tuple[EdgeSpan, ...]:
    edges = {edge.name: edge for edge in flow.plan.topology.edges}
    return tuple(
        EdgeSpan(
            edge=name,
            producer=edges[name].producer,
            consumer=edges[name].consumer,
            part=part,
            first_s=crossing.first_s - start,
            last_s=crossing.last_s - start,
            chunks=crossing.chunks,
            bytes=crossing.bytes,
            cache=edges[name].kv is not None,
        )
        for (name, part), crossing in flow.crossings.items()
    )
