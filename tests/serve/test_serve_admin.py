"""Sleep, wake and a look inside over HTTP, and whom a server listens to by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx2
import pytest

from antiphon import OmniRequest
from antiphon.cli.main import build_parser
from antiphon.orchestrator.live import PATIENCE_S
from antiphon.serve.settings import ServeSettings
from antiphon.stage.messages import Sleep, Wake
from fake_server import FakeServer
from live_server import LiveServer

FREED = {"thinker": 3, "talker": 2, "code2wav": 1}


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(settings={"admin": True}) as server:
        for name, stage in server.stages.items():
            stage.bytes_freed = FREED[name]
        yield server
        server.check_clean()


def post(server: FakeServer | LiveServer, path: str, body: dict[str, Any]) -> httpx2.Response:
    return httpx2.post(server.url + path, json=body, timeout=30)


def chat(server: FakeServer | LiveServer, model: str) -> httpx2.Response:
    messages = [{"role": "user", "content": "hi"}]
    body = {"model": model, "messages": messages, "max_completion_tokens": 4}
    return post(server, "/v1/chat/completions", body)


def health(server: FakeServer | LiveServer) -> tuple[int, str]:
    answer = httpx2.get(server.url + "/health", timeout=20)
    return answer.status_code, answer.json()["status"]


def running(server: LiveServer) -> float:
    """Calls without an outcome."""
    lines = httpx2.get(server.url + "/metrics", timeout=20).text.splitlines()
    (line,) = [one for one in lines if one.startswith("antiphon:requests_running")]
    return float(line.rsplit(" ", 1)[1])


def inspect(server: FakeServer | LiveServer) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = httpx2.get(server.url + "/admin/inspect", timeout=30).json()
    return found


@pytest.mark.parametrize(("body", "level"), [({}, 1), ({"level": 1}, 1), ({"level": 2}, 2)])
def test_sleep_and_wake_reach_every_stage(
    server: FakeServer, body: dict[str, int], level: int
) -> None:
    assert post(server, "/admin/sleep", body).json() == {"bytes_freed": FREED}
    assert post(server, "/admin/wake", {}).json() == {"status": "awake"}
    for stage in server.stages.values():
        assert [command.level for command in stage.sent(Sleep)] == [level]
        assert [command.tags for command in stage.sent(Wake)] == [None]
    assert chat(server, "fake").status_code == 200


def test_wake_takes_back_what_is_asked_for(server: FakeServer) -> None:
    assert post(server, "/admin/wake", {"tags": ["weights"]}).status_code == 200
    assert [c.tags for c in server.stages["talker"].sent(Wake)] == [["weights"]]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("sleep", {"level": 3}, "level"),
        ("sleep", {"depth": 1}, "depth"),
        ("wake", {"tags": ["kv"]}, "tags.0"),
    ],
)
def test_what_cannot_be_asked_for(
    server: FakeServer, path: str, body: dict[str, Any], param: str
) -> None:
    answer = post(server, f"/admin/{path}", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert not server.stages["thinker"].sent(Sleep) + server.stages["thinker"].sent(Wake)  # type: ignore[operator]


def test_a_look_inside(server: FakeServer) -> None:
    found = inspect(server)
    assert found.keys() == FREED.keys()
    for stage in found.values():
        assert (stage["requests"], stage["gated"], stage["connector_entries"]) == (0, 0, 0)


def test_health_says_that_a_server_serves_that_sleeps(server: FakeServer) -> None:
    """Its calls wait; a supervisor must not start it again."""
    post(server, "/admin/sleep", {})
    assert health(server) == (200, "sleeping")
    post(server, "/admin/wake", {})
    assert health(server) == (200, "ok")


def test_admin_has_to_be_allowed(fake_server: FakeServer) -> None:
    for path in ("sleep", "wake", "abort"):
        assert post(fake_server, f"/admin/{path}", {}).status_code == 404
    assert httpx2.get(fake_server.url + "/admin/inspect").status_code == 404


def test_real_stages_sleep_and_their_calls_wait(voice_server: LiveServer) -> None:
    freed = post(voice_server, "/admin/sleep", {"level": 1}).json()["bytes_freed"]
    with ThreadPoolExecutor() as pool:
        try:
            before = inspect(voice_server)
            assert freed.keys() == before.keys()
            waiting = pool.submit(chat, voice_server, "voice")
            due = time.monotonic() + 20
            while not running(voice_server):
                assert time.monotonic() < due
            after = inspect(voice_server)
            assert [s["steps"] for s in before.values()] == [s["steps"] for s in after.values()]
            assert health(voice_server) == (200, "sleeping")
            assert not waiting.done()
        finally:
            woken = post(voice_server, "/admin/wake", {})
        assert woken.json() == {"status": "awake"}
        assert waiting.result(60).status_code == 200


def test_nobody_else_can_call_unless_the_operator_says_so() -> None:
    assert ServeSettings().host == "127.0.0.1"
    options = build_parser().parse_args(["serve"])
    assert options.host == "127.0.0.1"
    assert not options.admin


def test_a_replica_drains_and_rejoins(server: FakeServer) -> None:
    body = {"stage": "talker", "replica": 0}
    assert post(server, "/admin/drain", body).json()["status"] == "drained"
    answer = httpx2.get(server.url + "/health", timeout=20)
    assert (answer.status_code, answer.json()["status"]) == (503, "degraded")
    assert answer.json()["stages"]["talker"]["replicas"][0]["state"] == "draining"
    assert chat(server, "fake").status_code == 200  # text does without
    assert post(server, "/admin/rejoin", body).json()["status"] == "ready"
    assert health(server) == (200, "ok")


def test_a_replica_is_restarted(server: FakeServer) -> None:
    before = server.stages["talker"]
    assert post(server, "/admin/restart", {"stage": "talker"}).json()["status"] == "ready"
    assert server.stages["talker"] is not before
    answer = httpx2.get(server.url + "/health", timeout=20).json()
    assert answer["stages"]["talker"]["replicas"] == [{"id": 0, "state": "ready", "restarts": 1}]
    assert 'antiphon:restarts_total{model_name="fake",replica="0",stage="talker"} 1.0' in (
        httpx2.get(server.url + "/metrics", timeout=20).text
    )


@pytest.mark.parametrize("call", ["drain", "rejoin", "restart"])
def test_a_replica_that_is_not_there(server: FakeServer, call: str) -> None:
    answer = post(server, f"/admin/{call}", {"stage": "talker", "replica": 3})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("there is no replica talker/3; there is")


def test_a_caller_who_leaves_waits_for_no_stage_that_hangs() -> None:
    """C12: all stages are frozen; letting go of a call takes a second, not as long as they hang."""
    with FakeServer(answers={}) as server:
        for stage in server.stages.values():
            server.on_loop(partial(setattr, stage, "frozen", True))
        request = OmniRequest(text="hello", modalities=("text",))

        async def leave() -> None:
            async with asyncio.timeout(0.2):
                await server.omni.generate(request)

        began = time.monotonic()
        with pytest.raises(TimeoutError):
            server.run(leave())
        assert time.monotonic() - began < 5 * PATIENCE_S
        for stage in server.stages.values():
            server.on_loop(stage.die)
