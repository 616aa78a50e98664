"""The answers of `/v1/chat/completions`: one object, or chunks of it."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.observe.timelines import timeline_json
from antiphon.orchestrator.api import Reply, Usage
from antiphon.serve.sse import event

FinishReason = Literal["stop", "length"]

_encode = msgspec.json.Encoder().encode


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Those of the prompt that a cache had."""

    cached_tokens: int


class UsageObject(msgspec.Struct, frozen=True):
    """Tokens of the text, as OpenAI counts them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class AudioObject(msgspec.Struct, frozen=True):
    """The sound of an answer."""

    id: str
    data: str  # base64 of a file
    expires_at: int  # Unix seconds
    transcript: str


class MessageObject(msgspec.Struct, frozen=True):
    """`content` is None where the text is the audio's transcript."""

    content: str | None
    audio: AudioObject | UnsetType = UNSET
    refusal: None = None
    role: str = "assistant"


class ChoiceObject(msgspec.Struct, frozen=True):
    """The one answer."""

    message: MessageObject
    finish_reason: FinishReason
    index: int = 0
    logprobs: None = None


class Extra(msgspec.Struct, frozen=True):
    """What OpenAI's API does not have."""

    timeline: dict[str, Any]


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer."""

    id: str
    object: str = "chat.completion"
    created: int  # Unix seconds
    model: str
    choices: tuple[ChoiceObject]
    usage: UsageObject
    antiphon: Extra | UnsetType = UNSET

    def to_json(self) -> bytes:
        return _encode(self)


def usage_of(usage: Usage) -> UsageObject:
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    details = PromptTokensDetails(usage.cached_tokens)
    return UsageObject(prompt, completion, prompt + completion, details)


def finish_reason(reply: Reply) -> FinishReason:
    return "length" if reply.finish_reason == "length" else "stop"


def extra(reply: Reply) -> Extra | UnsetType:
    """The timeline of a reply that has one."""
    return UNSET if reply.timeline is None else Extra(timeline_json(reply.timeline))


class _Envelope(msgspec.Struct, frozen=True):
    """What all chunks of an answer have."""

    id: str
    created: int
    model: str
    object: str = "chat.completion.chunk"


@dataclass(slots=True)
class Chunks:
    """Makes the chunks of one answer, each an event.

    A chunk is written for each token, so what is the same in all of them is encoded once.
    """

    id: str
    created: int  # Unix seconds
    model: str
    audio_id: str | None  # of a spoken answer
    reports_usage: bool
    _head: bytes = field(init=False)
    _tail: bytes = field(init=False)

    def __post_init__(self) -> None:
        envelope = _encode(_Envelope(self.id, self.created, self.model))
        self._head = envelope[:-1] + b',"choices":['
        self._tail = b'],"usage":null' if self.reports_usage else b"]"

    def opening(self) -> bytes:
        """Says whose answer it is."""
        if self.audio_id is None:
            return self._delta(b'{"role":"assistant","content":""}')
        return self._delta(
            b'{"role":"assistant","audio":{"id":%b,"transcript":""}}' % _encode(self.audio_id)
        )

    def text(self, text: str) -> bytes:
        """New text; of a spoken answer its transcript."""
        if self.audio_id is None:
            return self._delta(b'{"content":%b}' % _encode(text))
        return self._audio(b'"transcript":%b' % _encode(text))

    def sound(self, data: bytes) -> bytes:
        """New sound; nothing for none."""
        if not data:
            return b""
        return self._audio(b'"data":"%b"' % base64.b64encode(data))

    def expiry(self, expires_at: int) -> bytes:
        """The end of a spoken answer's sound."""
        return self._audio(b'"expires_at":%d' % expires_at)

    def ending(self, reply: Reply, antiphon: Extra | UnsetType) -> bytes:
        """The last chunks: why it ended, and the usage if that is reported."""
        reason = b'"%b"' % finish_reason(reply).encode()
        end = b"" if antiphon is UNSET else b',"antiphon":%b' % _encode(antiphon)
        if not self.reports_usage:
            return self._delta(b"{}", reason, end)
        usage = _encode(usage_of(reply.usage))
        return self._delta(b"{}", reason) + event(b'%b],"usage":%b%b}' % (self._head, usage, end))

    def _audio(self, content: bytes) -> bytes:
        return self._delta(b'{"audio":{"id":%b,%b}}' % (_encode(self.audio_id), content))

    def _delta(self, delta: bytes, reason: bytes = b"null", end: bytes = b"") -> bytes:
        return event(
            b'%b{"index":0,"delta":%b,"logprobs":null,"finish_reason":%b}%b%b}'
            % (self._head, delta, reason, self._tail, end)
        )
