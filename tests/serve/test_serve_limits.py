"""What stands before every handler, through real sockets."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import urlsplit

import httpx2
import pytest
import websockets.sync.client
from websockets.exceptions import InvalidStatus

from fake_server import FAKE, FakeServer

BODY = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


def _chat(server: FakeServer, **headers: str) -> httpx2.Response:
    return httpx2.post(server.url + "/v1/chat/completions", json=BODY, headers=headers)


def _error(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_a_key_is_asked_for() -> None:
    with FakeServer(settings={"api_key": "secret"}) as server:
        assert _error(_chat(server)) == (401, "invalid_api_key")
        assert _error(_chat(server, authorization="Bearer secreT")) == (401, "invalid_api_key")
        assert _error(_chat(server, authorization="Basic secret")) == (401, "invalid_api_key")
        assert _error(httpx2.get(server.url + "/v1/models"))[0] == 401
        assert _error(httpx2.get(server.url + "/metrics"))[0] == 401
        assert _chat(server, authorization="Bearer secret").status_code == 200
        assert httpx2.get(server.url + "/health").status_code == 200


def test_pages_of_other_sites_may_not_call(fake_server: FakeServer) -> None:
    """Else any page could use a server on its reader's own machine."""
    assert _error(_chat(fake_server, origin="https://evil.example")) == (403, "origin_not_allowed")
    assert _error(_chat(fake_server, origin="null")) == (403, "origin_not_allowed")
    assert _chat(fake_server, origin=fake_server.url).status_code == 200


def test_a_name_that_was_made_to_lead_here(fake_server: FakeServer) -> None:
    """DNS rebinding: to the browser the page and the server are of one site then."""
    for name in ("evil.example", "evil.example:80", "localhost.evil.example", "1.2.3.4.evil"):
        answer = _chat(fake_server, host=name, origin=f"http://{name}")
        assert _error(answer) == (403, "host_not_allowed")
    for name in ("localhost", "localhost:8000", "[::1]:8000", "192.168.0.1", "x.localhost"):
        assert _chat(fake_server, host=name).status_code == 200


def test_names_of_the_server_that_the_operator_gives() -> None:
    with FakeServer(settings={"allow_origins": ("https://page.example",)}) as server:
        assert _chat(server, host="page.example").status_code == 200
        assert _error(_chat(server, host="evil.example")) == (403, "host_not_allowed")
    with FakeServer(settings={"api_key": "secret"}) as server:
        answer = _chat(server, host="page.example", authorization="Bearer secret")
        assert answer.status_code == 200


def test_pages_that_the_operator_names_may_call() -> None:
    page = "https://page.example"
    with FakeServer(settings={"allow_origins": (page,)}) as server:
        answer = _chat(server, origin=page)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == page
        asked = httpx2.options(
            server.url + "/v1/chat/completions",
            headers={"origin": page, "access-control-request-method": "POST"},
        )
        assert asked.status_code == 200


def test_a_body_that_says_it_is_too_large() -> None:
    with FakeServer(settings={"max_body_bytes": 1000}) as server:
        answer = httpx2.post(
            server.url + "/v1/chat/completions",
            content=b'{"x": "' + b"x" * 2000 + b'"}',
            headers={"content-type": "application/json"},
        )
        assert _error(answer) == (413, "body_too_large")


def test_a_body_that_does_not_say_so() -> None:
    with FakeServer(settings={"max_body_bytes": 1000}) as server:
        answer = httpx2.post(
            server.url + "/v1/chat/completions",
            content=(b"x" * 100 for _ in range(20)),
            headers={"content-type": "application/json"},
        )
        assert _error(answer) == (413, "body_too_large")


def test_a_body_of_too_many_values(fake_server: FakeServer) -> None:
    """They would hold up everybody while they are parsed."""
    answer = httpx2.post(
        fake_server.url + "/v1/chat/completions",
        content=b'{"metadata": [' + b"[]," * 300_000 + b"[]]}",
        headers={"content-type": "application/json"},
    )
    assert _error(answer) == (413, "body_too_large")


def test_bodies_that_are_too_large_together() -> None:
    """Eight of the largest are taken; what a call held is free again when it is over."""
    with FakeServer(answers={}, settings={"max_body_bytes": 1000}) as server:
        padded = {**BODY, "user": "x" * 700}
        with ThreadPoolExecutor(20) as pool:
            calls = [
                pool.submit(
                    httpx2.post, server.url + "/v1/chat/completions", json=padded, timeout=20
                )
                for _ in range(12)
            ]
            server.wait_for(lambda: any(call.done() for call in calls))
            refused = next(call for call in calls if call.done()).result()
            assert _error(refused) == (503, "too_many_bytes")
            while any(not call.done() for call in calls):
                server.on_loop(lambda: _finish(server))
            assert {call.result().status_code for call in calls} == {200, 503}
        assert server.on_loop(lambda: server.service.bodies.held) == 0


def test_a_body_that_never_comes() -> None:
    with FakeServer(settings={"body_timeout_s": 0.2}) as server:
        at = urlsplit(server.url)
        assert at.hostname is not None
        with socket.create_connection((at.hostname, at.port or 0), timeout=5) as raw:
            raw.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
                b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{"
            )
            answer = b""
            while not answer.endswith(b"}"):
                answer += raw.recv(65_536)
            head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        assert json.loads(body)["error"]["code"] == "body_timeout"


def test_more_calls_than_may_be_open() -> None:
    """`/health` answers all the same, and there is room again when one has gone."""
    with FakeServer(answers={}, settings={"max_connections": 1}) as server:
        with ThreadPoolExecutor() as pool, httpx2.Client() as client:
            first = pool.submit(_chat, server)
            server.wait_for(lambda: server.stages["thinker"].live)
            refused = client.post(server.url + "/v1/chat/completions", json=BODY)
            assert _error(refused) == (503, "too_many_connections")
            assert refused.headers["retry-after"] == "1"
            assert client.get(server.url + "/health").status_code == 200
            server.on_loop(lambda: _finish(server))
            assert first.result(10).status_code == 200
        assert _error(httpx2.get(server.url + "/v1/nothing"))[0] == 404


def test_more_calls_than_may_wait_at_a_stage() -> None:
    """One runs, none may wait: the second is told when to come back."""
    topology = replace(
        FAKE, stages=tuple(replace(s, engine={"max_num_seqs": 1}) for s in FAKE.stages)
    )
    with (
        FakeServer(answers={}, topology=topology, settings={"max_queued": 0}) as server,
        ThreadPoolExecutor() as pool,
    ):
        first = pool.submit(_chat, server)
        server.wait_for(lambda: server.stages["thinker"].live)
        refused = _chat(server)
        assert _error(refused) == (429, "overloaded")
        assert int(refused.headers["retry-after"]) >= 1
        assert "stage 'thinker'" in refused.json()["error"]["message"]
        server.on_loop(lambda: _finish(server))
        assert first.result(10).status_code == 200


def _finish(server: FakeServer) -> None:
    thinker = server.stages["thinker"]
    for uid in list(thinker.live):
        thinker.tokens(uid, 1, finish="stop")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/audio/speech", "/admin/abort"])
def test_what_is_no_json_is_refused(fake_server: FakeServer, path: str) -> None:
    for content in (b"", b"{", b"[" * 5000, b"\xff\xfe", b"null", b"[]", b'{"model": NaN}'):
        answer = httpx2.post(
            fake_server.url + path, content=content, headers={"content-type": "application/json"}
        )
        assert 400 <= answer.status_code < 500
        assert answer.json()["error"]["message"]


def test_a_websocket_of_another_site_is_refused(fake_server: FakeServer) -> None:
    url = fake_server.url.replace("http", "ws") + "/v1/realtime?model=fake"
    with pytest.raises(InvalidStatus) as refused:
        websockets.sync.client.connect(url, origin="https://evil.example")  # type: ignore[arg-type]
    assert refused.value.response.status_code == 403


def test_an_unknown_path_and_a_wrong_method(fake_server: FakeServer) -> None:
    assert _error(httpx2.get(fake_server.url + "/v1/nothing"))[0] == 404
    assert _error(httpx2.get(fake_server.url + "/v1/chat/completions"))[0] == 405
