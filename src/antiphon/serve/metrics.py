"""`/metrics`: what the server counts, what its stages report, and vLLM's own metrics of each.

A scrape asks every running stage for its figures. One that does not answer in time is left out of
that scrape, and counted: a scrape neither hangs nor fails because of a stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from fastapi import APIRouter, Header, Response
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics import exposition as openmetrics

from antiphon.observe import table
from antiphon.observe.exposition import Exposition
from antiphon.observe.families import Family, Sample
from antiphon.observe.metrics import Metrics
from antiphon.observe.table import Metric
from antiphon.orchestrator.admission import Admission
from antiphon.orchestrator.replica import Replica, StageState
from antiphon.stage.messages import Measured

ANSWER_TIMEOUT_S = 1.0
_UP = frozenset({"ready", "draining", "asleep"})


class Measurable(Protocol):
    """What a scrape needs of a pipeline: `AsyncOmni`."""

    @property
    def stage_states(self) -> Mapping[str, StageState]: ...
    @property
    def admission(self) -> Admission: ...
    @property
    def late_outputs(self) -> int: ...
    async def measure(self, timeout_s: float = ...) -> dict[Replica, Measured]: ...


async def scrape(
    omni: Measurable, metrics: Metrics, accept: str = "", timeout_s: float = ANSWER_TIMEOUT_S
) -> tuple[bytes, str]:
    """The exposition and its content type, in the format that an Accept header asks for."""
    answers = await omni.measure(timeout_s)
    states = omni.stage_states
    for stage, state in states.items():
        for replica in state.replicas:
            if replica.state == "ready" and Replica(stage, replica.id) not in answers:
                metrics.unanswered(stage, replica.id)
    figures = _Figures(metrics.model_name)
    _pipeline(figures, omni, states)
    for place, measured in answers.items():
        _stage(figures, (place.stage, str(place.number)), measured)
    exposition = Exposition()
    exposition.add(metrics.families())
    exposition.add(figures.families())
    for place, measured in answers.items():
        labels = {"stage": place.stage, "replica": str(place.number)}
        exposition.add(
            [_without_model(family) for family in measured.engine],
            {table.MODEL: metrics.model_name, **labels},
        )
    return _encoded(exposition, accept)


def metrics_router(omni: Measurable, metrics: Metrics) -> APIRouter:
    """`GET /metrics`."""
    router = APIRouter()

    @router.get("/metrics", response_class=Response, tags=["operation"])
    async def get_metrics(accept: str = Header(default="")) -> Response:
        """Prometheus' text format, or OpenMetrics for who accepts it."""
        body, content_type = await scrape(omni, metrics, accept)
        return Response(body, headers={"content-type": content_type})

    return router


def _encoded(exposition: Exposition, accept: str) -> tuple[bytes, str]:
    encode, content_type = choose_encoder(accept)
    if content_type.startswith("application/openmetrics-text"):
        # However names are to be escaped: ours are valid in every way, but the library takes the
        # colons out of samples' names (and of no others) unless all of UTF-8 is allowed.
        allowed = openmetrics.ALLOWUTF8
        body: bytes = openmetrics.generate_latest(exposition, escaping=allowed)  # type: ignore[no-untyped-call]
        return body, openmetrics.CONTENT_TYPE_LATEST
    return encode(exposition), content_type


class _Figures:
    """Values of one scrape, by metric."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._samples: dict[Metric, list[Sample]] = {}

    def put(self, metric: Metric, value: float, *labels: str) -> None:
        names = metric.all_labels
        series = dict(zip(names, (self._model_name, *labels), strict=True))
        sample = Sample(metric.full_name, series, float(value))
        self._samples.setdefault(metric, []).append(sample)

    def families(self) -> list[Family]:
        return [
            Family(metric.full_name.removesuffix("_total"), metric.help, metric.kind, samples)
            for metric, samples in self._samples.items()
        ]


def _without_model(family: Family) -> Family:
    """vLLM's own model name is the checkpoint's folder: no matter of who reads metrics."""
    samples = [
        Sample(
            sample.name, {k: v for k, v in sample.labels.items() if k != table.MODEL}, sample.value
        )
        for sample in family.samples
    ]
    return Family(family.name, family.help, family.kind, samples)


def _pipeline(figures: _Figures, omni: Measurable, states: Mapping[str, StageState]) -> None:
    figures.put(table.LATE_OUTPUTS, omni.late_outputs)
    for stage, state in states.items():
        for replica in state.replicas:
            place = (stage, str(replica.id))
            figures.put(table.STAGE_UP, replica.state in _UP, *place)
            figures.put(table.RESTARTS, replica.restarts, *place)
        figures.put(table.STAGE_REQUESTS, omni.admission.live(stage), stage)
        if (limit := omni.admission.limit(stage)) is not None:
            figures.put(table.STAGE_LIMIT, limit, stage)


def _stage(figures: _Figures, place: tuple[str, str], measured: Measured) -> None:
    figures.put(table.STEPS, measured.steps, *place)
    figures.put(table.INTEGRITY_FAILURES, measured.integrity_failures, *place)
    figures.put(table.GATED, measured.gate.blocked, *place)
    figures.put(table.STARVED, measured.gate.starved, *place)
    figures.put(table.LATE_CHUNKS, measured.gate.late, *place)
    for edge, budget in measured.edges.items():
        for metric, value in (
            (table.EDGE_DEPTH, budget.chunks),
            (table.EDGE_CAPACITY, budget.capacity_chunks),
            (table.EDGE_DEPTH_BYTES, budget.bytes),
            (table.EDGE_CAPACITY_BYTES, budget.capacity_bytes),
            (table.EDGE_BLOCKED, budget.blocked),
            (table.EDGE_BLOCKINGS, budget.blockings),
            (table.EDGE_BLOCKED_S, budget.blocked_s),
        ):
            figures.put(metric, value, *place, edge)
    if (handoffs := measured.handoffs) is not None:
        for outcome, count in (
            ("ready", handoffs.ready),
            ("failed", handoffs.failed),
            ("cancelled", handoffs.cancelled),
        ):
            figures.put(table.KV_HANDOFFS, count, *place, outcome)
        figures.put(table.KV_STORE, handoffs.store_s, *place)
        figures.put(table.KV_BLOCKS, handoffs.held_blocks, *place)
