"""Whatever is sent, the answer is an answer or a mistake of the caller: never a 5xx, never a hang.

schemathesis makes the calls from the server's own OpenAPI: right ones and wrong ones.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx2
import hypothesis
import pytest
import schemathesis
from hypothesis import strategies as st

from antiphon import AsyncOmni
from antiphon.serve.app import create_app
from antiphon.serve.service import Service
from antiphon.serve.settings import ServeSettings
from fake_server import FAKE, FakeServer

EXAMPLES = int(os.environ.get("ANTIPHON_FUZZ_EXAMPLES", "25"))
TIMEOUT_S = 10
PATHS = [
    "/v1/chat/completions",
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
    "/admin/sleep",
    "/admin/wake",
    "/admin/abort",
]


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    settings = {"admin": True, "max_body_bytes": 1 << 20, "write_timeout_s": 5.0}
    with FakeServer(settings=settings) as server:
        yield server
        server.check_clean()


def _operations() -> dict[str, schemathesis.APIOperation[Any, Any, Any]]:
    """What the server's own OpenAPI says there is."""
    app = create_app(Service(AsyncOmni(FAKE), ServeSettings(admin=True)))
    found = schemathesis.openapi.from_dict(app.openapi()).get_all_operations()
    return {operation.ok().label: operation.ok() for operation in found}


OPERATIONS = _operations()


def test_the_api_describes_itself() -> None:
    assert {f"POST {path}" for path in PATHS} <= OPERATIONS.keys()


@pytest.mark.parametrize("label", sorted(OPERATIONS))
@hypothesis.settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
)
@hypothesis.given(data=st.data())
def test_calls_of_all_kinds(label: str, data: st.DataObject, server: FakeServer) -> None:
    mode = data.draw(st.sampled_from(list(schemathesis.GenerationMode)))
    case = data.draw(OPERATIONS[label].as_strategy(generation_mode=mode))
    answer = case.call(base_url=server.url, timeout=TIMEOUT_S)
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        _check_error(answer.json())


@hypothesis.settings(
    max_examples=EXAMPLES * 2, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
)
@hypothesis.given(path=st.sampled_from(PATHS), body=st.binary(max_size=2000))
def test_bodies_of_any_bytes(server: FakeServer, path: str, body: bytes) -> None:
    for kind in ("application/json", "multipart/form-data; boundary=x", "text/plain"):
        answer = httpx2.post(
            server.url + path, content=body, headers={"content-type": kind}, timeout=TIMEOUT_S
        )
        if answer.status_code == 200:
            assert path.startswith("/admin/")  # any object may be one that they take
        else:
            assert 400 <= answer.status_code < 500
            _check_error(answer.json())


@hypothesis.settings(
    max_examples=EXAMPLES * 2, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
)
@hypothesis.given(
    name=st.sampled_from(
        [
            "x-deadline-s",
            "traceparent",
            "authorization",
            "content-length",
            "origin",
            "accept",
            "host",
        ]
    ),
    value=st.binary(max_size=200),
)
def test_headers_of_any_bytes(server: FakeServer, name: str, value: bytes) -> None:
    """Over a bare socket, as no client would send them."""
    body = b'{"model": "fake", "messages": [{"role": "user", "content": "hi"}]}'
    lines = [
        b"POST /v1/chat/completions HTTP/1.1",
        b"content-type: application/json",
        b"connection: close",
        name.encode() + b": " + value,
    ]
    if name != "content-length":
        lines.append(b"content-length: %d" % len(body))
    if name != "host":
        lines.append(b"host: localhost")
    at = urlsplit(server.url)
    assert at.hostname is not None
    with socket.create_connection((at.hostname, at.port or 0), timeout=TIMEOUT_S) as raw:
        raw.sendall(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        raw.shutdown(socket.SHUT_WR)
        answer = b""
        while part := raw.recv(65_536):
            answer += part
    if answer:  # a head that is none may be answered by closing
        assert answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 4")), answer


def _check_error(body: object) -> None:
    """OpenAI's form."""
    assert isinstance(body, dict)
    error = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
