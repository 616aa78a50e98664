"""Metrics over the real router and fake stages: each request has one outcome in them, too."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.errors import StageDiedError, StageError
from antiphon.observe.metrics import Metrics
from antiphon.orchestrator.live import LiveRequest
from exposed import Exposed, as_text
from routing import STREAMS, Routing, session_uid, settle, uid


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("sample")


@pytest.fixture
def routing(metrics: Metrics) -> Routing:
    routing = Routing(STREAMS)
    routing.router.observers.add(metrics)
    return routing


def exposed(metrics: Metrics) -> Exposed:
    return Exposed(as_text(metrics.families()))


def alive(metrics: Metrics) -> tuple[float, float]:
    """Running, and waiting for their first output."""
    found = exposed(metrics)
    running = found.value("antiphon:requests_running")
    return running, found.value("antiphon:requests_waiting")


async def ended(routing: Routing, live: LiveRequest, cause: str) -> None:
    ending = asyncio.create_task(routing.router.abort(live, cause))
    await settle()
    routing.acknowledge_all()
    await ending


async def test_a_request_that_finishes(routing: Routing, metrics: Metrics) -> None:
    live = routing.submit(modalities=("text",))
    assert alive(metrics) == (1, 1)
    routing.clock.advance(0.25)
    routing["thinker"].tokens(uid(live), 1)
    assert alive(metrics) == (1, 0)
    routing.clock.advance(0.5)
    routing["thinker"].tokens(uid(live), 2, finish="stop")
    assert alive(metrics) == (0, 0)
    found = exposed(metrics)
    assert found.value("antiphon:requests_total", entry="chat", outcome="stop") == 1
    assert found.value("antiphon:time_to_first_token_seconds_sum") == 0.25
    assert found.value("antiphon:inter_token_latency_seconds_sum") == 0.5
    assert found.value("antiphon:stage_queue_seconds_sum", stage="thinker") == 0.25
    assert found.value("antiphon:stage_run_seconds_sum", stage="thinker") == 0.5
    routing.assert_empty()


@pytest.mark.parametrize("cause", ["request", "disconnect"])
async def test_a_request_that_is_aborted(routing: Routing, metrics: Metrics, cause: str) -> None:
    live = routing.submit()
    await ended(routing, live, cause)
    assert alive(metrics) == (0, 0)
    found = exposed(metrics)
    assert found.value("antiphon:requests_total", outcome="abort") == 1
    assert found.value("antiphon:aborts_total", cause=cause) == 1
    routing.assert_empty()


async def test_a_request_that_fails(routing: Routing, metrics: Metrics) -> None:
    live = routing.submit(modalities=("text",))
    routing["thinker"].fail(uid(live), StageError("no"))
    routing.acknowledge_all()
    assert alive(metrics) == (0, 0)
    assert exposed(metrics).value("antiphon:request_failures_total", code="stage") == 1


async def test_requests_of_a_stage_that_dies(routing: Routing, metrics: Metrics) -> None:
    for _ in range(3):
        routing.submit()
    routing["talker"].die(StageDiedError("it fell"))
    routing.acknowledge_all()
    assert alive(metrics) == (0, 0)
    assert exposed(metrics).value("antiphon:request_failures_total", code="stage_died") == 3


async def test_a_deadline(routing: Routing, metrics: Metrics) -> None:
    live = routing.submit(modalities=("text",), deadline_s=5)
    routing.clock.advance(5)
    routing.acknowledge_all()
    await live.ended.wait()
    assert exposed(metrics).value("antiphon:timeouts_total", reason="deadline_exceeded") == 1
    assert alive(metrics) == (0, 0)


async def test_requests_that_a_shutdown_ends(routing: Routing, metrics: Metrics) -> None:
    routing.submit()
    closing = asyncio.create_task(routing.router.close())
    await settle()
    routing.acknowledge_all()
    await closing
    assert alive(metrics) == (0, 0)
    assert exposed(metrics).value("antiphon:request_failures_total", code="shutdown") == 1


async def test_segments_of_a_session(routing: Routing, metrics: Metrics) -> None:
    async with routing.conversation(modalities=("text",)) as session:
        await session.append("one")
        thinker = session_uid(routing)
        routing["thinker"].tokens(thinker, 1)
        assert alive(metrics) == (1, 0)
        routing["thinker"].end_segment(thinker)
        assert alive(metrics) == (0, 0)
        await session.append("two")
        assert alive(metrics) == (1, 1)
        stopping = asyncio.create_task(session.interrupt())
        await settle()
        routing.acknowledge_all()
        await stopping
    assert alive(metrics) == (0, 0)
    found = exposed(metrics)
    assert found.value("antiphon:requests_total", outcome="stop") == 1
    assert found.value("antiphon:requests_total", outcome="interrupt") == 1


async def test_a_spoken_answer_crosses_its_edges(routing: Routing, metrics: Metrics) -> None:
    live = routing.submit()
    thinker, talker, code2wav = (routing[name] for name in STREAMS.stage_names)
    thinker.tokens(uid(live), 1, finish="stop")
    routing.clock.advance(0.5)
    thinker.ref(uid(live), "speech")
    talker.tokens(uid(live), 4, finish="stop")
    talker.ref(uid(live), "codes")
    routing.clock.advance(0.5)
    code2wav.audio(uid(live), [0.0] * 24_000)
    found = exposed(metrics)
    assert found.value("antiphon:audio_seconds_total") == 1.0
    assert found.value("antiphon:audio_continuity_ok_total") == 1
    assert found.value("antiphon:time_to_first_audio_seconds_sum") == 1.0
    assert found.value("antiphon:edge_chunks_total", edge="codes") == 1
    assert found.value("antiphon:edge_transfer_seconds_sum", edge="codes") == 0.5
    assert found.value("antiphon:stage_tokens_total", stage="code2wav") == 24_000
    assert alive(metrics) == (0, 0)
