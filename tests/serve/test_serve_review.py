"""Callers who mean harm: small calls that would stop the server for everybody."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from antiphon.serve import connection
from fake_server import FakeServer

MANY = 100_000
HELLO = {"role": "user", "content": "hi"}
BODIES: dict[str, dict[str, Any]] = {
    "messages": {"messages": [0] * MANY},
    "parts": {"messages": [{"role": "user", "content": [0] * MANY}]},
    "said": {"messages": [{"role": "assistant", "content": [0] * MANY}]},
    "right parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 500}] * 200
    },
    "modalities": {"modalities": [0] * MANY},
    "stages": {"sampling": {str(i): 0 for i in range(MANY)}},
    "sampling": {"sampling": {"thinker": {f"{i:>65}": 0 for i in range(MANY)}}},
    "params": {"params": {str(i): [] for i in range(MANY)}},
}


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server
        server.check_clean()


def _socket(server: FakeServer) -> socket.socket:
    at = urlsplit(server.url)
    assert at.hostname is not None
    return socket.create_connection((at.hostname, at.port or 0), timeout=10)


def _answer(raw: socket.socket) -> bytes:
    """Everything that comes until the server closes."""
    answer = b""
    try:
        while part := raw.recv(65_536):
            answer += part
    except ConnectionResetError:
        pass  # what had not been read yet
    return answer


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_lists_without_end_are_refused_at_once(server: FakeServer, body: dict[str, Any]) -> None:
    """Each entry was a complaint of pydantic's: a body of 32 MiB took minutes and gigabytes."""
    began = time.monotonic()
    answer = httpx2.post(
        server.url + "/v1/chat/completions",
        json={"model": "fake", "messages": [HELLO]} | body,
        timeout=30,
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_parameter"
    assert time.monotonic() - began < 0.5  # was 0.6 s and more for so few


def test_as_many_messages_as_may_be(server: FakeServer) -> None:
    body = {"model": "fake", "messages": [HELLO] * 4096}
    assert httpx2.post(server.url + "/v1/chat/completions", json=body).status_code == 200


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "//[x]:y", "["])
def test_an_origin_that_is_none(server: FakeServer, origin: str) -> None:
    answer = httpx2.get(server.url + "/v1/models", headers={"origin": origin})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed")


def test_headers_without_end(server: FakeServer) -> None:
    with _socket(server) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nhost: here\r\nx: ")
        with pytest.raises(OSError):
            for _ in range(1000):
                raw.sendall(b"a" * 65_536)


def test_long_headers_and_a_long_body(server: FakeServer) -> None:
    """What comes with the end of the head is not of the head."""
    body = json.dumps({"model": "fake", "messages": [HELLO], "user": "u" * (1 << 20)}).encode()
    with _socket(server) as raw:
        raw.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: here\r\nconnection: close\r\n"
            b"content-type: application/json\r\nx: %b\r\ncontent-length: %d\r\n\r\n%b"
            % (b"a" * 60_000, len(body), body)
        )
        assert _answer(raw).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("head", [b"", b"GET /health HTTP/1.1\r\nhost: he"])
def test_a_connection_that_brings_no_call(
    head: bytes, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.2)
    with _socket(server) as raw:
        raw.sendall(head)
        assert _answer(raw)[:12] == (b"HTTP/1.1 408" if head else b"")


def test_a_second_head_that_does_not_end(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.2)
    with _socket(server) as raw:
        raw.sendall(b"GET /version HTTP/1.1\r\nhost: here\r\n\r\nGET /health HTTP/1.1\r\nho")
        answer = _answer(raw)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 408" in answer


def test_a_long_call_is_not_a_slow_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.1)
    body = json.dumps({"model": "fake", "messages": [HELLO]}).encode()
    with FakeServer(answers={}) as server, _socket(server) as raw:
        raw.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: here\r\nconnection: close\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
        thinker = server.stages["thinker"]
        server.wait_for(lambda: thinker.live)
        raw.settimeout(0.3)
        with pytest.raises(TimeoutError):
            raw.recv(1)
        raw.settimeout(10)
        server.on_loop(lambda: thinker.finish(next(iter(thinker.live))))
        assert _answer(raw).startswith(b"HTTP/1.1 200")
        server.check_clean()


def test_what_is_no_http(server: FakeServer) -> None:
    with _socket(server) as raw:
        raw.sendall(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
        head, _, body = _answer(raw).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
