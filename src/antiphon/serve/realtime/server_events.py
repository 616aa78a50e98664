"""What a caller of `/v1/realtime` is sent: OpenAI's server events of the Realtime API.

https://platform.openai.com/docs/api-reference/realtime-server-events
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.serve.service import new_id

RATE = 24_000
"""Hz of 16-bit mono samples, in and out: the only PCM that the protocol has."""


class Format(msgspec.Struct, frozen=True):
    type: str = "audio/pcm"
    rate: int = RATE


class Content(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    text: str | UnsetType = UNSET
    audio: str | UnsetType = UNSET
    transcript: str | UnsetType | None = UNSET


class ItemBody(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "realtime.item"
    type: str = "message"
    status: str
    role: str
    content: list[Content]


class Transcription(msgspec.Struct, frozen=True):
    model: str


class InputBody(msgspec.Struct, frozen=True, kw_only=True):
    format: Format = Format()
    transcription: Transcription | None
    noise_reduction: None = None
    turn_detection: None = None


class OutputBody(msgspec.Struct, frozen=True, kw_only=True):
    format: Format = Format()
    voice: str
    speed: float | UnsetType = UNSET


class AudioBody(msgspec.Struct, frozen=True, kw_only=True):
    input: InputBody | UnsetType = UNSET
    output: OutputBody


class SessionBody(msgspec.Struct, frozen=True, kw_only=True):
    type: str = "realtime"
    object: str = "realtime.session"
    id: str
    model: str
    output_modalities: list[str]
    instructions: str
    max_output_tokens: int | str
    temperature: float | None
    truncation: str
    audio: AudioBody
    tools: list[None] = []
    tool_choice: str = "auto"
    tracing: None = None
    prompt: None = None
    include: None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    total_tokens: int
    input_tokens: int
    output_tokens: int


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    code: str | None
    message: str
    param: str | None = None


class StatusDetails(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    reason: str | UnsetType = UNSET
    error: Failure | UnsetType = UNSET


class ResponseBody(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "realtime.response"
    id: str
    status: str
    status_details: StatusDetails | None
    output: list[ItemBody]
    conversation_id: str | None
    output_modalities: list[str]
    max_output_tokens: int | str
    audio: AudioBody
    usage: Usage | None
    metadata: dict[str, str] | None


class Duration(msgspec.Struct, frozen=True):
    seconds: float
    type: str = "duration"


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    code: str | None
    message: str
    param: str | None
    event_id: str | None


class ServerEvent(msgspec.Struct, kw_only=True, tag_field="type"):
    event_id: str = msgspec.field(default_factory=lambda: new_id("event"))


class Error(ServerEvent, tag="error"):
    error: ErrorBody


class SessionCreated(ServerEvent, tag="session.created"):
    session: SessionBody


class SessionUpdated(ServerEvent, tag="session.updated"):
    session: SessionBody


class ItemAdded(ServerEvent, tag="conversation.item.added"):
    previous_item_id: str | None
    item: ItemBody


class ItemDone(ServerEvent, tag="conversation.item.done"):
    previous_item_id: str | None
    item: ItemBody


class ItemRetrieved(ServerEvent, tag="conversation.item.retrieved"):
    item: ItemBody


class ItemDeleted(ServerEvent, tag="conversation.item.deleted"):
    item_id: str


class ItemTruncated(ServerEvent, tag="conversation.item.truncated"):
    item_id: str
    content_index: int
    audio_end_ms: int


class TranscriptionCompleted(
    ServerEvent, tag="conversation.item.input_audio_transcription.completed"
):
    item_id: str
    content_index: int
    transcript: str
    usage: Duration


class TranscriptionFailed(ServerEvent, tag="conversation.item.input_audio_transcription.failed"):
    item_id: str
    content_index: int
    error: Failure


class BufferCommitted(ServerEvent, tag="input_audio_buffer.committed"):
    previous_item_id: str | None
    item_id: str


class BufferCleared(ServerEvent, tag="input_audio_buffer.cleared"):
    pass


class ResponseCreated(ServerEvent, tag="response.created"):
    response: ResponseBody


class ResponseDone(ServerEvent, tag="response.done"):
    response: ResponseBody


class OutputItem(ServerEvent, kw_only=True):
    response_id: str
    output_index: int = 0
    item: ItemBody


class OutputItemAdded(OutputItem, tag="response.output_item.added"):
    pass


class OutputItemDone(OutputItem, tag="response.output_item.done"):
    pass


class OfPart(ServerEvent, kw_only=True):
    """Of the one part of the one item of a response."""

    response_id: str
    item_id: str
    output_index: int = 0
    content_index: int = 0


class PartAdded(OfPart, tag="response.content_part.added"):
    part: Content


class PartDone(OfPart, tag="response.content_part.done"):
    part: Content


class TextDelta(OfPart, tag="response.output_text.delta"):
    delta: str


class TextDone(OfPart, tag="response.output_text.done"):
    text: str


class TranscriptDelta(OfPart, tag="response.output_audio_transcript.delta"):
    delta: str


class TranscriptDone(OfPart, tag="response.output_audio_transcript.done"):
    transcript: str


class AudioDelta(OfPart, tag="response.output_audio.delta"):
    delta: str
    """Base64 of 16-bit little-endian samples at `RATE`."""


class AudioDone(OfPart, tag="response.output_audio.done"):
    pass
