"""A conversation of `/v1/realtime` without a socket, and what its caller is told."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec

from antiphon.pipeline.topology import Entry
from antiphon.serve.realtime.answer import Answer, Outcome
from antiphon.serve.realtime.commands import Begin, Cancel, Forget, Listen
from antiphon.serve.realtime.context import request_of
from antiphon.serve.realtime.conversation import Conversation
from antiphon.serve.realtime.options import Abilities
from antiphon.serve.realtime.settings import RealtimeSettings

SECOND = base64.b64encode(bytes(48_000)).decode()
ABILITIES = Abilities(
    model="fake",
    outputs=("audio", "text"),
    writes=True,
    hears=True,
    transcribes=True,
    reads_transcripts=False,
    entry=Entry("chat", "thinker", "fake:Chat", inputs=("text", "audio"), params=("speaker",)),
    text_stage="thinker",
    sample_rate=24_000,
)


class Talk:
    """A conversation, and what its caller has been told."""

    def __init__(self, *, max_items: int = 100, max_audio_s: float = 10.0, **can: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.listens: list[Listen] = []
        self.answer: Answer | None = None
        abilities = msgspec.structs.replace(ABILITIES, **can)
        limits = RealtimeSettings(max_items=max_items, max_bytes=400_000)
        self.conversation = Conversation(abilities, limits, max_audio_s, self._emit)
        self.conversation.open()

    def _emit(self, event: Any) -> None:
        self.events.append(json.loads(msgspec.json.encode(event)))

    def say(self, type: str, **fields: Any) -> list[dict[str, Any]]:
        """What the caller is told at once."""
        return self.send(json.dumps({"type": type, "event_id": "mine", **fields}))

    def send(self, message: str) -> list[dict[str, Any]]:
        """The same for what may be no event at all."""
        before = len(self.events)
        for command in self.conversation.receive(message):
            match command:
                case Begin():
                    assert self.answer is None
                    self.answer = command.answer
                case Cancel():
                    assert command.answer is self.answer
                    self.finish(Outcome("cancelled"))
                case Listen():
                    self.listens.append(command)
                case Forget():
                    self.listens = [one for one in self.listens if one.item is not command.item]
        return self.events[before:]

    def ask(self, text: str = "hello") -> None:
        self.say("conversation.item.create", item=message(text))

    def respond(self, **given: Any) -> Answer:
        self.say("response.create", response=given)
        assert self.answer is not None
        return self.answer

    def finish(self, outcome: Outcome) -> None:
        assert self.answer is not None
        self.conversation.finished(self.answer, outcome)
        self.answer = None

    def error(self, type: str, **fields: Any) -> dict[str, Any]:
        """The one error that an event is answered with."""
        (told,) = self.say(type, **fields)
        assert told["type"] == "error"
        assert told["error"]["event_id"] == "mine"
        return dict(told["error"])

    def texts(self) -> list[tuple[str, str]]:
        """What the next answer would be given."""
        context = self.respond()
        asked = request_of(context, self.conversation.abilities).messages
        self.finish(Outcome("failed"))
        return [(str(m["role"]), str(m["content"])) for m in asked]


def message(text: str, role: str = "user", **fields: Any) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": text}]
    return {"type": "message", "role": role, "content": content, **fields}
