"""Connections that are too many, that never end, or that cannot become WebSockets."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx2
import psutil
import pytest
import websockets.sync.client

from antiphon.serve import connection
from antiphon.testing.fake_stage import Answer
from antiphon.testing.fault_table import Fault
from fake_server import ANSWERS, FakeServer

CALL = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
SPOKEN = CALL | {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "pcm16"}}
LONG = ANSWERS | {"code2wav": Answer(samples=(0.25,) * 3_000_000)}


def opened(server: FakeServer) -> socket.socket:
    """A connection that takes little at a time."""
    at = urlsplit(server.url)
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    raw.settimeout(10)
    raw.connect((at.hostname, at.port))
    return raw


def sent(raw: socket.socket, body: dict[str, Any], path: str = "/v1/chat/completions") -> None:
    data = json.dumps(body).encode()
    raw.sendall(
        b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (path.encode(), len(data), data)
    )


def rest(raw: socket.socket) -> bytes:
    """Everything that comes until the server closes."""
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while part := raw.recv(1 << 20):
            answer += part
    return answer


def sockets(server: FakeServer) -> int:
    """The server's own ends of its connections, as the system knows them."""
    port = urlsplit(server.url).port
    return sum(
        one.status != psutil.CONN_LISTEN and one.laddr.port == port
        for one in psutil.Process().net_connections("tcp")
    )


def wait_for_sockets(server: FakeServer, count: int) -> None:
    due = time.monotonic() + 10
    while (found := sockets(server)) != count:
        assert time.monotonic() < due, f"{found} connections, not {count}"
        server.on_loop(lambda: None)


@pytest.fixture
def small() -> Iterator[FakeServer]:
    with FakeServer(settings={"max_sockets": 2}) as server:
        yield server
        server.check_clean()


# --- too many -----------------------------------------------------------------------------------


def test_one_connection_too_many_is_told_so(small: FakeServer) -> None:
    with opened(small), opened(small) as second, opened(small) as third:
        wait_for_sockets(small, 3)
        sent(third, CALL)
        head, _, body = rest(third).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 1\r\n" in head + b"\r\n"
        assert b"\r\ncontent-type: application/json\r\n" in head
        assert json.loads(body)["error"]["code"] == "too_many_connections"
        sent(second, CALL)  # whoever was there before is served
        assert second.recv(12) == b"HTTP/1.1 200"
    wait_for_sockets(small, 0)


def test_clients_see_the_error(small: FakeServer) -> None:
    with opened(small), opened(small):
        wait_for_sockets(small, 2)
        answer = httpx2.post(small.url + "/v1/chat/completions", json=CALL)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


def test_one_too_many_that_says_nothing_is_closed(small: FakeServer) -> None:
    with opened(small), opened(small), opened(small) as third:
        began = time.monotonic()
        assert rest(third) == b""
        assert time.monotonic() - began < 3
        wait_for_sockets(small, 2)


def test_far_too_many_are_closed_at_once(
    small: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SURPLUS", 3)
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(opened(small))
        wait_for_sockets(small, 5)
        for _ in range(20):
            assert rest(stack.enter_context(opened(small))) == b""


def test_no_place_is_lost(small: FakeServer) -> None:
    """However connections end: there is room for as many afterwards."""
    url = small.url.replace("http", "ws") + "/v1/realtime?model=fake"
    for _ in range(3):
        with opened(small) as raw:
            raw.sendall(b"no HTTP\r\n\r\n")
            assert rest(raw).startswith(b"HTTP/1.1 400")
        with opened(small) as raw:
            sent(raw, CALL)
        with websockets.sync.client.connect(url):
            pass
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                stack.enter_context(opened(small))
        for head in HANDSHAKES.values():
            with opened(small) as raw:
                raw.sendall(head)
                rest(raw)
    wait_for_sockets(small, 0)
    with opened(small) as first, opened(small) as second:
        for raw in (first, second):
            sent(raw, CALL)
            assert raw.recv(12) == b"HTTP/1.1 200"


def test_a_websocket_has_its_place(small: FakeServer) -> None:
    url = small.url.replace("http", "ws") + "/v1/realtime?model=fake"
    with websockets.sync.client.connect(url), opened(small):
        wait_for_sockets(small, 2)
        assert httpx2.get(small.url + "/health").status_code == 503


# --- no handshake -------------------------------------------------------------------------------

_UPGRADE = b"host: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
HANDSHAKES = {
    "no ASCII": b"GET /v1/\xff HTTP/1.1\r\n%b\r\n" % _UPGRADE,
    "a long header": b"GET /v1/realtime HTTP/1.1\r\n%bx: %b\r\n\r\n" % (_UPGRADE, b"a" * 10_000),
    "many headers": b"GET /v1/realtime HTTP/1.1\r\n%b%b\r\n" % (_UPGRADE, b"x: y\r\n" * 300),
    "another method": b"PUT /v1/realtime HTTP/1.1\r\n%b\r\n" % _UPGRADE,
    "no key": b"GET /v1/realtime HTTP/1.1\r\n%b\r\n" % _UPGRADE,
}


@pytest.mark.parametrize("head", HANDSHAKES.values(), ids=HANDSHAKES)
def test_what_is_no_handshake_is_refused(head: bytes, fake_server: FakeServer) -> None:
    """The library reads less than HTTP allows; such connections stayed open for ever."""
    with opened(fake_server) as raw:
        raw.sendall(head)
        assert rest(raw).startswith(b"HTTP/1.1 4")
        wait_for_sockets(fake_server, 0)


# --- ends that last -----------------------------------------------------------------------------


@pytest.mark.fault("client-never-reads")
def test_who_reads_nothing_loses_the_connection(
    monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT_S", 1.0)
    with FakeServer(answers=LONG, settings={"write_timeout_s": 0.3}) as server:
        with opened(server) as raw:
            sent(raw, SPOKEN | {"stream": True})
            server.wait_for(lambda: server.stages["code2wav"].commands)
            server.wait_for(lambda: server.service.open_calls == 0, fault.within_s or 0)
            wait_for_sockets(server, 0)
        server.check_clean()


@pytest.mark.fault("client-never-reads")
def test_a_websocket_that_reads_nothing_too(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT_S", 1.0)
    item = {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "hi"}],
    }
    with FakeServer(answers=LONG, settings={"write_timeout_s": 0.3}) as server:
        url = server.url.replace("http", "ws") + "/v1/realtime?model=fake"
        reader = {"sock": opened(server), "max_queue": 1, "compression": None}
        with websockets.sync.client.connect(url, **reader) as talk:  # type: ignore[arg-type]
            talk.send(json.dumps({"type": "conversation.item.create", "item": item}))
            talk.send(json.dumps({"type": "response.create"}))
            server.wait_for(lambda: server.stages["code2wav"].commands)
            server.wait_for(lambda: server.service.open_calls == 0, fault.within_s or 0)
            wait_for_sockets(server, 0)
            talk.socket.close()
        server.check_clean()


def test_who_reads_slowly_gets_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection may be closing for longer than the timeout, as long as something is taken."""
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT_S", 1.0)
    body = json.dumps({"model": "fake", "input": "hi", "voice": "alloy", "response_format": "wav"})
    with FakeServer(answers=LONG) as server, opened(server) as raw:
        raw.sendall(
            b"POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (len(body), body.encode())
        )
        server.wait_for(lambda: server.stages["code2wav"].commands)
        received, closed = 0, time.monotonic() + 2.5
        while part := raw.recv(1 << 14):
            received += len(part)
            if time.monotonic() < closed:
                threading.Event().wait(0.05)
        assert received > 6_000_000
