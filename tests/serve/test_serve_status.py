"""What a server says about itself, and how it answers mistakes."""

from __future__ import annotations

import httpx2

from antiphon.errors import StageDiedError
from fake_server import FakeServer


def test_models_and_version(fake_server: FakeServer) -> None:
    models = httpx2.get(fake_server.url + "/v1/models").json()
    assert [model["id"] for model in models["data"]] == ["fake"]
    assert "version" in httpx2.get(fake_server.url + "/version").json()
    answer = httpx2.get(fake_server.url + "/v1/models/other")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def test_health_tells_of_a_stage_that_has_died(fake_server: FakeServer) -> None:
    assert httpx2.get(fake_server.url + "/health").status_code == 200
    fake_server.on_loop(lambda: fake_server.stages["talker"].die(StageDiedError("it fell")))

    def health() -> httpx2.Response:
        return httpx2.get(fake_server.url + "/health")

    fake_server.wait_for(lambda: fake_server.omni.stage_states["talker"].state == "gone")
    answer = health()
    assert answer.status_code == 503
    assert answer.json()["status"] == "degraded"
    assert answer.json()["stages"]["talker"]["replicas"] == [
        {"id": 0, "state": "gone", "restarts": 0, "reason": "it fell"}
    ]
    assert answer.json()["stages"]["thinker"]["state"] == "ready"


def test_health_while_the_stages_start() -> None:
    with FakeServer(ready=False) as server:
        answer = httpx2.get(server.url + "/health")
        assert (answer.status_code, answer.json()["status"]) == (503, "starting")
