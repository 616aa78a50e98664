"""One answer, from `response.created` to `response.done`, in OpenAI's order of events."""

from __future__ import annotations

import base64
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from antiphon.serve.errors import ApiError
from antiphon.serve.realtime.history import Item, Part
from antiphon.serve.realtime.options import Options
from antiphon.serve.realtime.server_events import (
    RATE,
    AudioBody,
    AudioDelta,
    AudioDone,
    Content,
    Failure,
    OutputBody,
    OutputItemAdded,
    OutputItemDone,
    PartAdded,
    PartDone,
    ResponseBody,
    ResponseCreated,
    ResponseDone,
    ServerEvent,
    StatusDetails,
    TextDelta,
    TextDone,
    TranscriptDelta,
    TranscriptDone,
    Usage,
)

Emit = Callable[[ServerEvent], None]
Status = Literal["completed", "cancelled", "incomplete", "failed"]

_DELTA_BYTES = 2 * RATE
"""Of sound in one event, a second: clients often refuse messages of more than a MiB."""


class Phase(enum.Enum):
    """It only ever goes on to a later one."""

    CREATED = enum.auto()  # nothing has come yet
    RUNNING = enum.auto()  # its message has begun
    CANCELLING = enum.auto()  # what still comes is dropped
    DONE = enum.auto()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an answer has ended."""

    status: Status
    reason: str | None = None
    error: ApiError | None = None
    usage: Usage | None = None


@dataclass(slots=True, eq=False)
class Answer:
    """The state of one response; its events go to `emit`.

    `added` and `done` are told of its message, at their place among the events; they put it into
    the conversation, if it belongs there.
    """

    id: str
    item: Item  # the assistant's message; it has one part
    options: Options
    context: list[Item]  # what it answers
    conversation: str | None  # None: it belongs to none
    emit: Emit
    added: Callable[[Item], None]
    done: Callable[[Item], None]
    own_context: bool = False  # given with the response, and not the conversation's
    metadata: Mapping[str, str] | None = None
    phase: Phase = field(default=Phase.CREATED, init=False)

    def create(self) -> None:
        """The first event."""
        self.emit(ResponseCreated(response=self._body("in_progress")))

    @property
    def begun(self) -> bool:
        """Whether its message exists."""
        return bool(self.item.parts)

    @property
    def part(self) -> Part:
        return self.item.parts[0]

    def on_text(self, text: str) -> None:
        """More of what is written, or said."""
        if not self._begin():
            return
        self.part.text += text
        kind = TextDelta if self.options.output == "text" else TranscriptDelta
        self.emit(kind(response_id=self.id, item_id=self.item.id, delta=text))

    def on_sound(self, pcm: bytes) -> None:
        """More of what is heard: 16-bit samples at `RATE`."""
        if not pcm or not self._begin():
            return
        self.part.samples += len(pcm) // 2
        for start in range(0, len(pcm), _DELTA_BYTES):
            delta = base64.b64encode(pcm[start : start + _DELTA_BYTES]).decode()
            self.emit(AudioDelta(response_id=self.id, item_id=self.item.id, delta=delta))

    def cancel(self) -> None:
        """Nothing more of it is sent but its end."""
        if self.phase is not Phase.DONE:
            self.phase = Phase.CANCELLING

    def finish(self, outcome: Outcome) -> None:
        """Its last events, once; one that was being cancelled is cancelled, however it ended."""
        if self.phase is Phase.DONE:
            return
        if self.phase is Phase.CANCELLING:
            outcome = Outcome("cancelled", "client_cancelled", usage=outcome.usage)
        elif outcome.status == "completed":
            self._begin()  # an empty answer is an answer
        self.phase = Phase.DONE
        if self.begun:
            self._close(outcome.status)
        self.emit(ResponseDone(response=self._body(outcome.status, outcome)))

    def _begin(self) -> bool:
        """Begin the message if that is to be done; whether anything may be added to it."""
        if self.phase is Phase.CREATED:
            self.phase = Phase.RUNNING
            self.emit(OutputItemAdded(response_id=self.id, item=self.item.body()))
            self.added(self.item)
            spoken = self.options.output == "audio"
            self.item.parts.append(Part("output_audio" if spoken else "output_text"))
            empty = self._content()
            self.emit(PartAdded(response_id=self.id, item_id=self.item.id, part=empty))
        return self.phase is Phase.RUNNING

    def _close(self, status: Status) -> None:
        of, at, text = self.id, self.item.id, self.part.text
        if self.options.output == "audio":
            self.emit(AudioDone(response_id=of, item_id=at))
            self.emit(TranscriptDone(response_id=of, item_id=at, transcript=text))
        else:
            self.emit(TextDone(response_id=of, item_id=at, text=text))
        self.emit(PartDone(response_id=of, item_id=at, part=self._content()))
        self.item.status = "completed" if status == "completed" else "incomplete"
        self.done(self.item)
        self.emit(OutputItemDone(response_id=self.id, item=self.item.body()))

    def _content(self) -> Content:
        """The part in the words that OpenAI has for it in events of parts."""
        if self.options.output == "audio":
            return Content(type="audio", transcript=self.part.text)
        return Content(type="text", text=self.part.text)

    def _body(self, status: str, outcome: Outcome | None = None) -> ResponseBody:
        return ResponseBody(
            id=self.id,
            status=status,
            status_details=None if outcome is None else _details(outcome),
            output=[self.item.body()] if self.begun else [],
            conversation_id=self.conversation,
            output_modalities=[self.options.output],
            max_output_tokens=self.options.shown_max(),
            audio=AudioBody(output=OutputBody(voice=self.options.shown_voice())),
            usage=None if outcome is None else outcome.usage,
            metadata=None if self.metadata is None else dict(self.metadata),
        )


def _details(outcome: Outcome) -> StatusDetails | None:
    if outcome.error is not None:
        return StatusDetails(type=outcome.status, error=failure(outcome.error))
    if outcome.reason is not None:
        return StatusDetails(type=outcome.status, reason=outcome.reason)
    return None


def failure(error: ApiError) -> Failure:
    """An error inside another event."""
    return Failure(type=error.type, code=error.code, message=error.detail, param=error.param)
