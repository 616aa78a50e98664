"""OpenTelemetry spans of one request, made of its record. Imported only where tracing is on.

    chat voice                      the request; child of the caller's span, if one was named
    ├── stage thinker               one for each unit, from its submission to its end
    ├── edge speech                 one for each part of the producer; links to the producing unit
    ├── stage talker                links to the edges that it was given something over
    └── kv hand-off prefix          an edge that hands a KV cache over

Names of attributes are OpenTelemetry's semantic conventions for generative AI where these have one
(https://opentelemetry.io/docs/specs/semconv/registry/attributes/gen-ai/), vLLM's for latencies
(`vllm.tracing.utils.SpanAttributes`), and begin with `antiphon.` otherwise. Times are in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from antiphon.observe.record import EdgeSpan, StageSpan, Timeline

Attribute = str | bool | int | float | Sequence[str] | None
_PROPAGATOR = TraceContextTextMapPropagator()
_FAILED = Status(StatusCode.ERROR)


def write_spans(tracer: Tracer, timeline: Timeline) -> None:
    """Start and end the spans of a request that has ended; processors get them one by one."""
    _Writer(tracer, timeline).write()


class _Writer:
    def __init__(self, tracer: Tracer, timeline: Timeline) -> None:
        self._tracer = tracer
        self._timeline = timeline
        self._inside = Context()  # of the root span's children

    def write(self) -> None:
        timeline = self._timeline
        root = self._root()
        self._inside = set_span_in_context(root, Context())
        fed: dict[tuple[str, int], list[Link]] = {}  # by consuming stage and part
        # Producers come first in the record, so that what is linked to is there.
        for stage in dict.fromkeys(unit.stage for unit in timeline.stages):
            made = {u.part: self._stage(u, fed) for u in timeline.stages if u.stage == stage}
            for edge in timeline.edges:
                if edge.producer == stage:
                    link = Link(self._edge(edge, made[edge.part]).get_span_context())
                    for part in edge.consumer_parts:
                        fed.setdefault((edge.consumer, part), []).append(link)
        self._end(root, timeline.total_s)

    # --- the three kinds of spans -------------------------------------------------------------

    def _root(self) -> Span:
        """A trace context that is malformed is none: the trace begins here."""
        timeline = self._timeline
        parent = _PROPAGATOR.extract(timeline.trace_headers, Context())
        name = f"{timeline.entry} {timeline.pipeline}"
        span = self._start(name, 0.0, parent, _root_attributes(timeline), kind=SpanKind.SERVER)
        self._event(span, "antiphon.first_text", timeline.ttft_s)
        self._event(span, "antiphon.first_audio", timeline.ttfa_s)
        self._event(span, "antiphon.first_image", timeline.ttfi_s)
        if timeline.outcome == "error":
            span.set_status(Status(StatusCode.ERROR, timeline.message))
        return span

    def _stage(self, unit: StageSpan, fed: Mapping[tuple[str, int], Sequence[Link]]) -> Span:
        attributes: dict[str, Attribute] = {
            "antiphon.stage.name": unit.stage,
            "antiphon.stage.replica_id": unit.replica,
            "antiphon.stage.part": unit.part,
            "antiphon.stage.tokens": unit.tokens,
            "antiphon.stage.finish": unit.finish,
            "antiphon.stage.wait_s": _between(unit.submitted_s, unit.input_s),
            "antiphon.stage.queue_s": _between(unit.input_s, unit.first_s),
            "antiphon.stage.run_s": _between(unit.first_s, unit.last_s),
        }
        links = fed.get((unit.stage, unit.part), ())
        name = f"stage {unit.stage}"
        span = self._start(name, unit.submitted_s, self._inside, attributes, links=links)
        if links:
            self._event(span, "antiphon.first_input", unit.input_s)
        self._event(span, "antiphon.first_output", unit.first_s)
        if unit.finish == "error":
            span.set_status(_FAILED)
        last_s = self._timeline.total_s if unit.last_s is None else unit.last_s
        self._end(span, last_s)
        return span

    def _edge(self, edge: EdgeSpan, producer: Span) -> Span:
        attributes: dict[str, Attribute] = {
            "antiphon.edge.name": edge.edge,
            "antiphon.edge.producer": edge.producer,
            "antiphon.edge.consumer": edge.consumer,
            "antiphon.edge.part": edge.part,
            "antiphon.edge.chunks": edge.chunks,
            "antiphon.edge.bytes": edge.bytes,
            "antiphon.edge.kv_cache": edge.cache,
        }
        name = f"kv hand-off {edge.edge}" if edge.cache else f"edge {edge.edge}"
        # What comes before the first chunk and after the last is told by events all the same.
        links = [Link(producer.get_span_context())]
        span = self._start(name, edge.first_s, self._inside, attributes, links=links)
        self._event(span, "antiphon.edge.producer_first_output", edge.producer_output_s)
        self._event(span, "antiphon.edge.first_chunk", edge.first_s if edge.chunks else None)
        self._event(span, "antiphon.edge.first_used", edge.first_used_s)
        self._event(span, "antiphon.edge.consumer_first_output", edge.consumer_output_s)
        self._end(span, max(edge.last_s, edge.last_used_s or 0.0))
        return span

    # --- times --------------------------------------------------------------------------------

    def _start(
        self,
        name: str,
        at_s: float,
        context: Context,
        attributes: Mapping[str, Attribute],
        *,
        links: Sequence[Link] = (),
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Span:
        known = {key: value for key, value in attributes.items() if value is not None}
        return self._tracer.start_span(name, context, kind, known, links, self._unix_ns(at_s))

    def _event(self, span: Span, name: str, at_s: float | None) -> None:
        if at_s is not None:
            span.add_event(name, timestamp=self._unix_ns(at_s))

    def _end(self, span: Span, at_s: float) -> None:
        span.end(self._unix_ns(at_s))

    def _unix_ns(self, seconds: float) -> int:
        return round((self._timeline.started_unix_s + seconds) * 1e9)


def _root_attributes(timeline: Timeline) -> dict[str, Attribute]:
    failed = timeline.outcome == "error"
    playback = timeline.playback
    return {
        "gen_ai.operation.name": timeline.entry,
        "gen_ai.provider.name": "antiphon",
        "gen_ai.request.model": timeline.pipeline,
        "gen_ai.response.id": timeline.id,
        "gen_ai.response.finish_reasons": None if failed else (timeline.outcome,),
        "gen_ai.usage.input_tokens": timeline.prompt_tokens,
        "gen_ai.usage.output_tokens": timeline.output_tokens,
        "gen_ai.latency.e2e": timeline.total_s,
        "gen_ai.latency.time_to_first_token": timeline.ttft_s,
        "error.type": timeline.cause if failed else None,
        "antiphon.request.label": timeline.label,
        "antiphon.outcome": timeline.outcome,
        "antiphon.cause": timeline.cause,
        "antiphon.latency.time_to_first_audio": timeline.ttfa_s,
        "antiphon.latency.time_to_first_image": timeline.ttfi_s,
        "antiphon.rtf": timeline.rtf,
        "antiphon.audio.seconds": None if playback is None else playback.audio_s,
        "antiphon.audio.continuous": None if playback is None else playback.continuous,
        "antiphon.audio.worst_underrun_s": None if playback is None else playback.worst_underrun_s,
    }


def _between(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else end_s - start_s
