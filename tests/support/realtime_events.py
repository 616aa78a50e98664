"""What the events of one conversation over `/v1/realtime` have to be like, whatever was said."""

from __future__ import annotations

import base64
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from openai import BaseModel
from openai.types.realtime import RealtimeServerEvent

Json = Mapping[str, Any]


def _models() -> dict[str, type[BaseModel]]:
    """OpenAI's own classes, by the type of the event."""
    union = typing.get_args(RealtimeServerEvent)[0]
    return {
        typing.get_args(model.model_fields["type"].annotation)[0]: model
        for model in typing.get_args(union)
    }


MODELS = _models()
_DELTAS = {
    "response.output_text.delta",
    "response.output_audio.delta",
    "response.output_audio_transcript.delta",
}
_ENDS = {
    "audio": ["response.output_audio.done", "response.output_audio_transcript.done"],
    "text": ["response.output_text.done"],
}


def check_all(events: Sequence[Json], *, whole: bool = True) -> None:
    """Raise AssertionError for what OpenAI's server would not send; `whole`: nothing is running."""
    for event in events:
        MODELS[event["type"]].model_validate(event, strict=True)
    ids = [event["event_id"] for event in events]
    assert len(set(ids)) == len(ids)
    assert [e["type"] for e in events].count("session.created") == 1
    assert events[0]["type"] == "session.created"
    responses = _Responses()
    for event in events:
        responses.see(event)
    if whole:
        assert responses.running is None


class _Responses:
    """One after the other, each in OpenAI's order."""

    def __init__(self) -> None:
        self.running: str | None = None
        self.item: Json | None = None
        self.expected: list[str] | None = None  # what alone may come next of it
        self.text = ""

    def see(self, event: Json) -> None:
        kind = event["type"]
        if kind == "response.created":
            assert self.running is None, "two responses at a time"
            assert event["response"]["status"] == "in_progress"
            self.running, self.item, self.text = event["response"]["id"], None, ""
            self.expected = None
        elif kind == "response.done":
            self._done(event["response"])
        elif kind.startswith("response."):
            assert event["response_id"] == self.running, f"{kind} of no running response"
            self._part(kind, event)

    def _part(self, kind: str, event: Json) -> None:
        if kind == "response.output_item.added":
            assert self.item is None
            assert (event["item"]["status"], event["item"]["content"]) == ("in_progress", [])
            self.item, self.expected = event["item"], ["response.content_part.added"]
            return
        assert self.item is not None
        if kind == "response.output_item.done":
            assert self.expected == [kind]
            assert event["item"]["id"] == self.item["id"]
            assert self.text == _said(event["item"]["content"][0])
            self.expected = ["response.done"]
            return
        assert event["item_id"] == self.item["id"]
        if self.expected:
            assert kind == self.expected.pop(0)
            if kind == "response.content_part.added":
                self.modality = event["part"]["type"]
            elif kind == "response.content_part.done":
                self.expected = ["response.output_item.done"]
        elif kind in _DELTAS:
            assert (kind == "response.output_text.delta") == (self.modality == "text")
            if kind == "response.output_audio.delta":
                assert len(base64.b64decode(event["delta"], validate=True)) % 2 == 0
            else:
                self.text += event["delta"]
        else:
            assert kind == _ENDS[self.modality][0]
            self.expected = [*_ENDS[self.modality][1:], "response.content_part.done"]

    def _done(self, response: Json) -> None:
        assert response["id"] == self.running
        assert response["status"] in ("completed", "cancelled", "incomplete", "failed")
        if self.item is None:
            assert response["output"] == []
            assert response["status"] != "completed"
        else:
            assert self.expected == ["response.done"]
            assert [item["id"] for item in response["output"]] == [self.item["id"]]
        self.running = None


def _said(content: Json) -> str:
    return str(content["text"] if content["type"] == "output_text" else content["transcript"])
