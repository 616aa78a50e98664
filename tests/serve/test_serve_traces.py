"""`/v1/antiphon/traces` over HTTP."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from antiphon.observe.timelines import Summary, timeline_json
from records import VOICE
from trace_server import Server, trace_server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with trace_server() as running:
        yield running


def get(server: Server, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=10)
    try:
        connection.request("GET", f"/v1/antiphon/traces{path}")
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@pytest.mark.parametrize("name", [VOICE.id, "mine"])
def test_a_request_is_given_out_by_its_id_and_by_the_callers(server: Server, name: str) -> None:
    assert get(server, f"/{name}") == (200, json.loads(json.dumps(timeline_json(VOICE))))


def test_the_list_has_the_main_figures(server: Server) -> None:
    status, body = get(server, "")
    assert (status, body["object"]) == (200, "list")
    (one,) = body["data"]
    assert one == msgspec.to_builtins(msgspec.convert(VOICE, Summary, from_attributes=True))


@pytest.mark.parametrize("name", ["nobody", "a/b", "%00", "%ff", "..%2f", "x" * 5000])
def test_what_is_not_kept_is_404_in_openais_form(server: Server, name: str) -> None:
    status, body = get(server, f"/{name}")
    assert status == 404
    assert body["error"]["code"] == "trace_not_found"
    assert body["error"]["type"] == "not_found_error"
    assert "is kept" in body["error"]["message"]


@pytest.mark.parametrize("limit", ["0", "-1", "x", ""])
def test_a_limit_that_makes_no_sense_is_400(server: Server, limit: str) -> None:
    status, body = get(server, f"?limit={limit}")
    assert (status, body["error"]["param"]) == (400, "limit")
