"""Messages of `/v1/realtime`: whatever comes, the caller is told what is wrong, and may go on.

tests/serve has a machine of right events in any order; here they are damaged, as trees and as text.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import websockets.sync.client
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed

from antiphon.serve.realtime.answer import Outcome
from antiphon.serve.realtime.client_events import TYPES
from fake_server import FakeServer
from fuzzing import bounded, campaign, damaged, seeds
from realtime_events import check_all
from realtime_talk import SECOND, Talk, message

SEEDS = seeds("realtime")
# fmt: off
PLAIN: list[dict[str, Any]] = [
    {"type": "input_audio_buffer.append", "audio": SECOND},
    {"type": "input_audio_buffer.commit"},
    {"type": "input_audio_buffer.clear"},
    {"type": "output_audio_buffer.clear"},
    {"type": "conversation.item.create", "item": message("hello", id="mine")},
    {"type": "conversation.item.retrieve", "item_id": "mine"},
    {"type": "conversation.item.delete", "item_id": "mine"},
    {"type": "response.create"},
    {"type": "response.cancel"},
]
# fmt: on


def _readable(seed: bytes) -> list[dict[str, Any]]:
    with contextlib.suppress(ValueError, RecursionError):
        return [json.loads(seed)]
    return []


EVENTS = [*PLAIN, *(event for seed in SEEDS for event in _readable(seed))]
# fmt: off
ODD = st.sampled_from([
    None, True, False, 0, -1, 1, 4097, 1 << 31, 1 << 63, 1 << 64, 10**400, -(10**400), 0.5, 1e308,
    float("nan"), float("inf"), "", "x", "root", "mine", "\ud800", "\0", "\udfff\ud800", "é" * 3000,
    "A" * 5, "A" * 6400, "AAA=", "=", "audio/pcm", "realtime", "message", "input_audio", "audio",
    [], [[]], [None] * 500, {}, {"type": "message"}, {"": {}}, [{}] * 40,
]).map(copy.deepcopy)  # it may be damaged in its turn
NEW_KEYS = st.sampled_from(["tools", "x", "", "id", "object", "status", "\ud800", "`$.a`"])
ENDLESS = st.sampled_from(["[" * 2000, '{"a":' * 2000, "1" * 9000])
# fmt: on


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a tree, with each key or index in it."""
    if isinstance(tree, dict | list):
        keys = list(tree) if isinstance(tree, dict) else range(len(tree))
        for key in keys:
            yield tree, key
            yield from _places(tree[key])


def _damage(draw: st.DrawFn, tree: dict[str, Any]) -> None:
    """Put something else at one place of the tree."""
    places = list(_places(tree))
    if not places:
        return
    parent, key = draw(st.sampled_from(places))
    match draw(st.sampled_from(["replace", "remove", "wrap", "add", "type"])):
        case "replace":
            parent[key] = draw(ODD)
        case "remove":
            del parent[key]
        case "wrap":
            parent[key] = [parent[key]]
        case "add" if isinstance(parent, dict):
            parent[draw(NEW_KEYS)] = draw(ODD)
        case "type":
            tree["type"] = draw(st.sampled_from(TYPES))


@st.composite
def events(draw: st.DrawFn) -> str:
    """One event as text: right, with something in its tree replaced, or with wrong letters."""
    tree = copy.deepcopy(draw(st.sampled_from(EVENTS)))
    for _ in range(draw(st.integers(0, 3))):
        _damage(draw, tree)
    text = json.dumps(tree)
    if draw(st.integers(0, 4)) == 0:
        text = draw(damaged([text.encode(), *SEEDS])).decode(errors="replace")
    if draw(st.integers(0, 9)) == 0:
        text = text.replace("null", draw(ENDLESS))
    return text


PIPELINE = ("text", "sound", "end", "fail", "hear", "deaf")


def _go_on(talk: Talk, step: str) -> None:
    """What the pipeline does meanwhile."""
    if talk.answer is not None:
        if step == "text":
            talk.answer.on_text("one ")
        elif step == "sound" and talk.answer.options.output == "audio":
            talk.answer.on_sound(bytes(480))
        elif step in ("end", "fail"):
            talk.finish(Outcome("completed" if step == "end" else "failed"))
    if talk.listens and step == "hear":
        talk.conversation.heard(talk.listens.pop(0), "seven")


@campaign(10)
@given(st.lists(events() | st.sampled_from(PIPELINE), max_size=12))
def test_a_conversation_of_damaged_events(story: Sequence[str]) -> None:
    talk = Talk(max_items=6)
    for step in story:
        if step in PIPELINE:
            _go_on(talk, step)
            continue
        with bounded(len(step.encode(errors="surrogatepass"))):
            told = talk.send(step)
        for event in told:
            if event["type"] == "error":
                assert event["error"]["message"]
                assert len(event["error"]["message"]) <= 2003
    (told_last,) = talk.say("session.update", session={"instructions": "go on"})
    assert told_last["type"] == "session.updated"
    if talk.answer is not None:
        talk.finish(Outcome("cancelled"))
    check_all(talk.events)


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server
        server.check_clean()


@campaign(0.5)
@given(story=st.lists(events() | st.binary(max_size=40), max_size=8))
def test_connections_of_damaged_events(server: FakeServer, story: Sequence[str | bytes]) -> None:
    """Over a real WebSocket, with stages that answer: none is closed for what was said."""
    url = server.url.replace("http", "ws") + "/v1/realtime?model=fake"
    last = {"type": "session.update", "event_id": "last", "session": {"instructions": "go on"}}
    told: list[dict[str, Any]] = []
    with websockets.sync.client.connect(url, max_size=None) as caller:
        try:
            for step in story:
                caller.send(step)
            caller.send(json.dumps(last))
            while not _is_last(told):
                told.append(json.loads(caller.recv(timeout=20)))
        except ConnectionClosed as closed:
            pytest.fail(f"closed with {closed.rcvd}")
    check_all(told, whole=False)


def _is_last(told: Sequence[dict[str, Any]]) -> bool:
    return bool(told) and told[-1].get("session", {}).get("instructions") == "go on"
