"""What a caller of `/v1/realtime` sends: OpenAI's client events of the Realtime API.

https://platform.openai.com/docs/api-reference/realtime-client-events. Fields that OpenAI has and
this server cannot serve are declared as `Unserved`: a value that asks for nothing is accepted, any
other refused by name. Fields that nobody knows are refused when an event is read.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from antiphon.serve.errors import ApiError

Unserved = Any | UnsetType
Text = str | UnsetType
Id = Annotated[str, Meta(min_length=1, max_length=64)]


class _Given(msgspec.Struct, forbid_unknown_fields=True):
    """An object of the caller's; what it does not name is UNSET."""


class FormatGiven(_Given):
    type: str
    rate: int | None = None


class TranscriptionGiven(_Given):
    model: str | None = None
    """Which model is the pipeline's choice; any name will do."""
    language: Unserved = UNSET
    languages: Unserved = UNSET
    prompt: Unserved = UNSET
    keywords: Unserved = UNSET
    delay: Unserved = UNSET


class InputGiven(_Given):
    format: FormatGiven | UnsetType = UNSET
    transcription: TranscriptionGiven | UnsetType | None = UNSET
    noise_reduction: Unserved = UNSET
    turn_detection: Unserved = UNSET


class VoiceGiven(_Given):
    id: str


class OutputGiven(_Given):
    format: FormatGiven | UnsetType = UNSET
    voice: str | VoiceGiven | UnsetType | None = UNSET
    speed: float | UnsetType = UNSET


class SessionAudioGiven(_Given):
    input: InputGiven | UnsetType = UNSET
    output: OutputGiven | UnsetType = UNSET


class ResponseAudioGiven(_Given):
    output: OutputGiven | UnsetType = UNSET


class AnswerGiven(_Given):
    """What a session and a single response may set alike."""

    instructions: Text = UNSET
    output_modalities: list[Literal["text", "audio"]] | UnsetType = UNSET
    max_output_tokens: Annotated[int, Meta(ge=1, le=4096)] | Literal["inf"] | UnsetType | None = (
        UNSET
    )
    temperature: Annotated[float, Meta(ge=0, le=2)] | UnsetType | None = UNSET
    tools: Unserved = UNSET
    tool_choice: Unserved = UNSET
    parallel_tool_calls: Unserved = UNSET
    prompt: Unserved = UNSET
    reasoning: Unserved = UNSET


class SessionGiven(AnswerGiven):
    type: Literal["realtime"] = "realtime"
    model: Text = UNSET
    audio: SessionAudioGiven | UnsetType = UNSET
    truncation: Literal["auto", "disabled"] | UnsetType = UNSET
    tracing: Unserved = UNSET
    include: Unserved = UNSET


class ContentGiven(_Given):
    type: Literal["input_text", "input_audio", "output_text"]
    text: str | None = None
    audio: str | None = None
    """Base64 of sound in the session's input format."""
    transcript: str | None = None


class MessageGiven(_Given, tag_field="type", tag="message"):
    role: Literal["system", "user", "assistant"]
    content: Annotated[list[ContentGiven], Meta(min_length=1, max_length=32)]
    id: Id | None = None
    object: Literal["realtime.item"] | None = None
    status: Literal["completed", "incomplete", "in_progress"] | None = None


class ReferenceGiven(_Given, tag_field="type", tag="item_reference"):
    id: str


_Metadata = dict[
    Annotated[str, Meta(max_length=64)],
    Annotated[str, Meta(max_length=512)],
]


class ResponseGiven(AnswerGiven):
    conversation: Literal["auto", "none"] | None = None
    input: list[MessageGiven | ReferenceGiven] | None = None
    metadata: Annotated[_Metadata, Meta(max_length=16)] | None = None
    audio: ResponseAudioGiven | UnsetType = UNSET


class _Event(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    event_id: str | None = None


class SessionUpdate(_Event, tag="session.update"):
    session: SessionGiven


class BufferAppend(_Event, tag="input_audio_buffer.append"):
    audio: str


class BufferCommit(_Event, tag="input_audio_buffer.commit"):
    pass


class BufferClear(_Event, tag="input_audio_buffer.clear"):
    pass


class OutputBufferClear(_Event, tag="output_audio_buffer.clear"):
    """For WebRTC, where the server plays; over a WebSocket there is nothing to clear."""


class ItemCreate(_Event, tag="conversation.item.create"):
    item: MessageGiven
    previous_item_id: str | None = None


class ItemRetrieve(_Event, tag="conversation.item.retrieve"):
    item_id: str


class ItemDelete(_Event, tag="conversation.item.delete"):
    item_id: str


class ItemTruncate(_Event, tag="conversation.item.truncate"):
    item_id: str
    content_index: int
    audio_end_ms: Annotated[int, Meta(ge=0)]


class ResponseCreate(_Event, tag="response.create"):
    response: ResponseGiven | None = None


class ResponseCancel(_Event, tag="response.cancel"):
    response_id: str | None = None


ClientEvent = (
    SessionUpdate
    | BufferAppend
    | BufferCommit
    | BufferClear
    | OutputBufferClear
    | ItemCreate
    | ItemRetrieve
    | ItemDelete
    | ItemTruncate
    | ResponseCreate
    | ResponseCancel
)


class Head(msgspec.Struct, frozen=True):
    """What an error about an event needs to know of it."""

    type: str
    event_id: str | None = None


_HEADS = msgspec.json.Decoder(Head)
_EVENTS = msgspec.json.Decoder(ClientEvent)
TYPES = tuple(str(kind.__struct_config__.tag) for kind in ClientEvent.__args__)


def head_of(message: str) -> Head:
    """Raises ApiError for what is no event at all."""
    head: Head = _read(_HEADS, message)
    return head


def parse(head: Head, message: str) -> ClientEvent:
    """The event. Raises ApiError, which names the field that is to blame."""
    if head.type not in TYPES:
        raise ApiError(
            400,
            f"there is no client event {head.type[:100]!r}; there are {', '.join(TYPES)}",
            code="unknown_event_type",
            param="type",
        )
    event: ClientEvent = _read(_EVENTS, message)
    return event


def _read(decoder: msgspec.json.Decoder[Any], message: str) -> Any:
    try:
        return decoder.decode(message)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        reason = f"the message is not JSON that can be read: {error}"
        raise ApiError(400, reason, code="invalid_json") from None


_PLACE = re.compile(r"(.*?)(?: - at `\$\.?([^`]*)`)?", re.DOTALL)
_NAMED = (
    (
        re.compile(r"Object contains unknown field `(.*)`", re.DOTALL),
        "unknown_parameter",
        "unknown",
    ),
    (re.compile(r"Object missing required field `(.*)`"), "missing_required_parameter", "missing"),
)


def _invalid(reason: str) -> ApiError:
    """msgspec's complaint in OpenAI's words."""
    parts = _PLACE.fullmatch(reason)
    said, place = (reason, None) if parts is None else parts.groups()
    for pattern, code, what in _NAMED:
        if found := pattern.fullmatch(said):
            param = ".".join(part for part in (place, found[1][:100]) if part)
            return ApiError(400, f"the field {param} is {what}", code=code, param=param)
    said = said.replace("`", "")
    message = f"{place}: {said[:1].lower()}{said[1:]}" if place else said
    return ApiError(400, message, code="invalid_parameter", param=place)
