"""A scrape of a server: what it counts itself, what its stages report, and those that do not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx2
import msgspec
import pytest
from fastapi import FastAPI
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics_families,
)

from antiphon import OmniRequest
from antiphon.core.budget import EdgeBudget, EdgeLimits
from antiphon.core.gate import Gate
from antiphon.errors import EmptyInputError, InvalidRequestError, StageDiedError
from antiphon.observe.families import Family, Sample
from antiphon.observe.metrics import Metrics
from antiphon.sched.events import HandoffStatistics
from antiphon.serve.metrics import metrics_router, scrape
from antiphon.stage.messages import Measure, Measured
from antiphon.testing.clock import ManualClock
from antiphon.testing.fake_stage import FakeStage
from exposed import Exposed
from fake_server import BY_HAND, FakeServer

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def metrics(fake_server: FakeServer) -> Metrics:
    metrics = Metrics("fake")
    fake_server.omni.observe(metrics)
    return metrics


def scraped(server: FakeServer, metrics: Metrics, timeout_s: float = 5.0) -> Exposed:
    body, _ = server.run(scrape(server.omni, metrics, "", timeout_s))
    found = Exposed(body)
    found.check()
    return found


def answer(server: FakeServer, stage: str, measured: Measured) -> None:
    """Have a stage that is driven by hand answer what it has been asked last."""
    fake = server.stages[stage]
    command = server.wait_for(lambda: fake.sent(Measure) and fake.sent(Measure)[-1])
    assert isinstance(command, Measure)
    token = command.token
    server.on_loop(lambda: fake.emit(msgspec.structs.replace(measured, token=token)))


def plain() -> Measured:
    return Measured(0, 3, Gate(ManualClock()).statistics())


def test_a_request_is_seen(fake_server: FakeServer, metrics: Metrics) -> None:
    fake_server.run(fake_server.omni.generate(OmniRequest(text="hello")))
    found = scraped(fake_server, metrics)
    assert found.value("antiphon:requests_total", model_name="fake", outcome="stop") == 1
    assert found.value("antiphon:requests_running") == 0
    assert found.value("antiphon:audio_seconds_total") == pytest.approx(0.2)
    for stage in ("thinker", "talker", "code2wav"):
        assert found.value("antiphon:stage_up", stage=stage, replica="0") == 1
        assert found.value("antiphon:stage_requests", stage=stage) == 0
        assert found.value("antiphon:stage_requests_limit", stage=stage) >= 64
        assert found.value("antiphon:stage_steps_total", stage=stage) == 0
    assert found.find("antiphon:scrapes_unanswered_total") == []


def test_a_refused_request_is_seen(fake_server: FakeServer, metrics: Metrics) -> None:
    with pytest.raises(EmptyInputError):
        fake_server.run(fake_server.omni.generate(OmniRequest(text=" ")))
    found = scraped(fake_server, metrics)
    assert found.value("antiphon:admission_rejections_total", reason="empty_input") == 1


def test_a_session_that_cannot_be_opened_is_seen(fake_server: FakeServer, metrics: Metrics) -> None:
    session = fake_server.on_loop(lambda: fake_server.omni.session(entry="nowhere"))
    with pytest.raises(InvalidRequestError, match="nowhere"):
        fake_server.run(session.__aenter__())
    found = scraped(fake_server, metrics)
    assert found.value("antiphon:admission_rejections_total", reason="invalid_parameter") == 1


def test_a_stage_that_is_gone_is_down_and_not_asked(
    fake_server: FakeServer, metrics: Metrics
) -> None:
    stage = fake_server.stages["talker"]
    fake_server.on_loop(lambda: stage.die(StageDiedError("it fell")))
    fake_server.wait_for(lambda: fake_server.omni.stage_states["talker"].state == "gone")
    found = scraped(fake_server, metrics)
    assert found.value("antiphon:stage_up", stage="talker") == 0
    assert found.value("antiphon:stage_up", stage="thinker") == 1
    assert found.find("antiphon:stage_steps_total", stage="talker") == []
    assert found.find("antiphon:scrapes_unanswered_total") == []


def test_the_figures_of_stages() -> None:
    with FakeServer(answers=BY_HAND) as server, ThreadPoolExecutor(1) as pool:
        clock = ManualClock()
        budget = EdgeBudget(EdgeLimits(request_chunks=1, total_chunks=8), clock)
        budget.sent("x", "k", 100)
        budget.blocked("x")
        clock.advance(2.5)
        handoffs = HandoffStatistics(5, 5, 3, 1, 1, 0, 0, 7, 0, 0, 0.75)
        engine = [
            Family(
                "vllm:generation_tokens",
                "Tokens.",
                "counter",
                [Sample("vllm:generation_tokens_total", {"model_name": "/m", "engine": "0"}, 9.0)],
            )
        ]
        measured = Measured(
            0,
            42,
            Gate(clock).statistics(),
            edges={"speech": budget.statistics()},
            handoffs=handoffs,
            engine=engine,
        )
        metrics = Metrics("fake")
        scraping = pool.submit(scraped, server, metrics, 10.0)
        for stage in ("thinker", "talker", "code2wav"):
            answer(server, stage, measured if stage == "thinker" else plain())
        found = scraping.result(10)
        place = {"stage": "thinker", "replica": "0", "model_name": "fake"}
        for name, value in (
            ("antiphon:stage_steps_total", 42),
            ("antiphon:edge_depth_chunks", 1),
            ("antiphon:edge_capacity_chunks", 8),
            ("antiphon:edge_depth_bytes", 100),
            ("antiphon:edge_blocked_requests", 1),
            ("antiphon:edge_blockings_total", 1),
            ("antiphon:edge_blocked_seconds_total", 2.5),
            ("antiphon:kv_store_seconds_total", 0.75),
            ("antiphon:kv_held_blocks", 7),
            ("vllm:generation_tokens_total", 9),
        ):
            assert found.find(name, **place) == [value], name
        assert found.value("antiphon:kv_handoffs_total", outcome="failed", **place) == 1
        server.check_clean()


def test_a_stage_that_does_not_answer_is_left_out_and_counted() -> None:
    """A scrape neither hangs nor fails, and the stage is not asked again until it has answered."""
    with FakeServer(answers=BY_HAND) as server:
        metrics = Metrics("fake")
        found = scraped(server, metrics, timeout_s=0.01)
        assert found.find("antiphon:stage_steps_total") == []
        assert found.value("antiphon:scrapes_unanswered_total", stage="talker", replica="0") == 1
        assert found.value("antiphon:stage_up", stage="talker") == 1
        scraped(server, metrics, timeout_s=0.01)
        talker: FakeStage = server.stages["talker"]
        assert len(talker.sent(Measure)) == 1
        answer(server, "talker", plain())  # late, and for nobody
        found = scraped(server, metrics, timeout_s=0.01)
        assert len(talker.sent(Measure)) == 2
        assert found.value("antiphon:scrapes_unanswered_total", stage="talker") == 3
        server.check_clean()


def test_a_stage_that_dies_while_it_is_asked() -> None:
    with FakeServer(answers=BY_HAND) as server, ThreadPoolExecutor(1) as pool:
        metrics = Metrics("fake")
        scraping = pool.submit(scraped, server, metrics, 10.0)
        for stage in ("thinker", "code2wav"):
            answer(server, stage, plain())
        talker = server.stages["talker"]
        server.wait_for(lambda: talker.sent(Measure))
        server.on_loop(lambda: talker.die(StageDiedError("it fell")))
        found = scraping.result(10)
        assert found.value("antiphon:stage_up", stage="talker") == 0
        assert found.value("antiphon:stage_steps_total", stage="thinker") == 3
        assert found.find("antiphon:scrapes_unanswered_total") == []


def test_a_server_that_starts_can_be_scraped() -> None:
    with FakeServer(ready=False) as server:
        server.wait_for(lambda: server.omni.stage_states)
        found = scraped(server, Metrics("fake"))
        assert found.find("antiphon:stage_up", stage="talker") == [0]
        assert found.find("antiphon:scrapes_unanswered_total") == []


@pytest.mark.parametrize("escaping", ["", "; escaping=allow-utf-8", "; escaping=underscores"])
def test_the_route_speaks_both_formats(escaping: str) -> None:
    with FakeServer() as server:
        metrics = Metrics("fake")
        server.omni.observe(metrics)
        app = FastAPI()
        app.include_router(metrics_router(server.omni, metrics))
        server.run(server.omni.generate(OmniRequest(text="hello")))

        async def get(accept: str) -> httpx2.Response:
            transport = httpx2.ASGITransport(app)
            async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
                return await client.get("/metrics", headers={"accept": accept})

        plain_text = server.run(get("text/plain"))
        assert plain_text.headers["content-type"].startswith("text/plain; version=")
        Exposed(plain_text.text).check()
        opened = server.run(get(OPEN_METRICS + escaping))
        assert opened.headers["content-type"].startswith("application/openmetrics-text")
        names = {family.name for family in open_metrics_families(opened.text)}
        assert "antiphon:requests" in names
        assert "antiphon:e2e_request_latency_seconds" in names
