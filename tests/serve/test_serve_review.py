"""Callers who mean harm: small calls that would stop the server for everybody."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from antiphon.errors import InvalidRequestError
from antiphon.serve import connection, mp4_tables, wav_chunks
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
    answer = httpx2.post(
        server.url + "/v1/chat/completions",
        json={"model": "fake", "messages": [HELLO]} | body,
        timeout=30,
    )
    assert answer.status_code == 400
    assert "entries; give at most" in answer.json()["error"]["message"]


def test_as_many_messages_as_may_be(server: FakeServer) -> None:
    body = {"model": "fake", "messages": [HELLO] * 4096}
    assert httpx2.post(server.url + "/v1/chat/completions", json=body).status_code == 200


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "//[x]:y", "["])
def test_an_origin_that_is_none(server: FakeServer, origin: str) -> None:
    answer = httpx2.get(server.url + "/v1/models", headers={"origin": origin})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed")


def test_headers_without_end(server: FakeServer) -> None:
    with _socket(server) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: ")
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            raw.sendall(b"a" * (64 << 20))


def test_long_headers_and_a_long_body(server: FakeServer) -> None:
    """What comes with the end of the head is not of the head."""
    body = json.dumps({"model": "fake", "messages": [HELLO], "user": "u" * (1 << 20)}).encode()
    with _socket(server) as raw:
        raw.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
            b"content-type: application/json\r\nx: %b\r\ncontent-length: %d\r\n\r\n%b"
            % (b"a" * 60_000, len(body), body)
        )
        assert _answer(raw).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("head", [b"", b"GET /health HTTP/1.1\r\nhost: he"])
def test_a_connection_that_brings_no_call(
    head: bytes, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 1.0)
    with _socket(server) as raw:
        raw.sendall(head)
        assert _answer(raw)[:12] == (b"HTTP/1.1 408" if head else b"")


def test_a_second_head_that_does_not_end(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 1.0)
    with _socket(server) as raw:
        raw.sendall(b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}"):
            answer += raw.recv(65_536)
        raw.sendall(b"GET /health HTTP/1.1\r\nho")
        assert _answer(raw).startswith(b"HTTP/1.1 408")


def test_a_long_call_is_not_a_slow_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 1.0)
    body = json.dumps({"model": "fake", "messages": [HELLO]}).encode()
    with FakeServer(answers={}) as server, _socket(server) as raw:
        raw.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
        thinker = server.stages["thinker"]
        server.wait_for(lambda: thinker.live)
        raw.settimeout(1.3)
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


def test_an_error_does_not_repeat_all_that_was_sent(server: FakeServer) -> None:
    sampling = {"thinker": {"temperature": "\x01" * (1 << 20)}}
    body = {"model": "fake", "messages": [HELLO], "sampling": sampling}
    answer = httpx2.post(server.url + "/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert len(answer.content) < 10_000


def test_a_key_of_any_letters() -> None:
    key = "schl\u00fcssel-\u9375"
    with FakeServer(settings={"api_key": key}) as server:
        sent = b"Bearer " + key.encode()
        answer = httpx2.get(server.url + "/v1/models", headers={"authorization": sent})
        assert answer.status_code == 200


def test_names_of_tables_without_end() -> None:
    """Each was looked at: seconds, in which nobody else's sound was decoded."""
    with pytest.raises(InvalidRequestError, match="too complicated"):
        mp4_tables.check_tables(b"\0\xff\xff\xffmoov" + b"stsz" * (1 << 20), "the audio")


def test_chunks_without_end() -> None:
    data = b"RIFF\xff\xff\xff\xffWAVE" + b"junk\0\0\0\0" * 5000
    sound = b"fmt \x10\0\0\0" + bytes(16) + b"data\x02\0\0\0\0\0"
    assert wav_chunks.plain_wav(data[:20] + sound) is not None
    assert wav_chunks.plain_wav(data + sound) is None
