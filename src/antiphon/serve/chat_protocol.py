"""The body of `/v1/chat/completions`, as OpenAI's API has it, and the extensions at its end.

What the pipelines cannot do is refused by name (`UNSUPPORTED`); what makes no difference to an
answer is taken and not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from antiphon.orchestrator.stop_strings import MAX_STOP_CHARS, MAX_STOPS
from antiphon.serve.errors import wrong
from antiphon.serve.strict import Body, Extended, Name, Text, Voiced, Whole, check_count

# Fields that are refused, with the values that ask for nothing.
UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "moderation": (),
    "n": (1,),
    "prediction": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": (),
    "web_search_options": (),
}


class TextPart(Body):
    """Text."""

    type: Literal["text"]
    text: Text
    prompt_cache_breakpoint: Any = None


class RefusalPart(Body):
    """What an answer said in place of a text."""

    type: Literal["refusal"]
    refusal: Text


class InputAudio(Body):
    """A file with sound, in base64. What it is shows in the file; `format` is OpenAI's field."""

    data: Text
    format: Name


class AudioPart(Body):
    """Sound."""

    type: Literal["input_audio"]
    input_audio: InputAudio
    prompt_cache_breakpoint: Any = None


Heard = Annotated[TextPart | AudioPart, Field(discriminator="type")]
Said = Annotated[TextPart | RefusalPart, Field(discriminator="type")]


def _as_parts(content: Any) -> Any:
    """A plain text is one part."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


class SystemMessage(Body):
    """How to answer."""

    role: Literal["system", "developer"]
    content: Annotated[
        list[TextPart],
        Field(fail_fast=True),
        BeforeValidator(_as_parts, json_schema_input_type=Text | list[TextPart]),
    ]
    name: Name | None = None


class UserMessage(Body):
    """What is asked; sound comes before the text of its message."""

    role: Literal["user"]
    content: Annotated[
        list[Heard],
        Field(fail_fast=True),
        BeforeValidator(_as_parts, json_schema_input_type=Text | list[Heard]),
    ]
    name: Name | None = None


class PastAudio(Body):
    """An earlier answer: its id is enough as long as the server knows it."""

    id: Name
    data: Text | None = None
    expires_at: Whole | None = None
    transcript: Text | None = None


class AssistantMessage(Body):
    """An earlier answer, as it was given."""

    role: Literal["assistant"]
    content: Annotated[
        Annotated[list[Said], Field(fail_fast=True)] | None,
        BeforeValidator(_as_parts, json_schema_input_type=Text | list[Said] | None),
    ] = None
    audio: PastAudio | None = None
    refusal: Text | None = None
    name: Name | None = None
    annotations: list[Any] | None = None
    tool_calls: Annotated[list[Any], Field(max_length=0)] | None = None
    function_call: None = None


Message = Annotated[SystemMessage | UserMessage | AssistantMessage, Field(discriminator="role")]


class AudioOptions(Voiced):
    """How the answer sounds."""

    format: Literal["wav", "aac", "mp3", "flac", "opus", "pcm16"]


class StreamOptions(Body):
    """What a stream brings beside the answer."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


def _as_list(stop: Any) -> Any:
    return [stop] if isinstance(stop, str) else stop


Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
Stops = Annotated[
    list[Stop],
    Field(max_length=MAX_STOPS),
    BeforeValidator(
        _as_list, json_schema_input_type=Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)]
    ),
]


def _few_parts(messages: Any) -> Any:
    """Raises ApiError for more parts of messages than anybody needs."""
    if isinstance(messages, list):
        contents = (m.get("content") for m in messages if isinstance(m, dict))
        check_count(sum(len(parts) for parts in contents if isinstance(parts, list)), "messages")
    return messages


class ChatRequest(Extended):
    """One answer to a conversation."""

    model: Annotated[str, Field(max_length=256)]
    messages: Annotated[
        list[Message],
        Field(min_length=1, fail_fast=True),
        BeforeValidator(_few_parts, json_schema_input_type=list[Message]),
    ]
    modalities: Annotated[list[Literal["text", "audio"]], Field(min_length=1)] | None = None
    audio: AudioOptions | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_completion_tokens: Annotated[Whole, Field(ge=1)] | None = None
    max_tokens: Annotated[Whole, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Whole | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    stop: Stops | None = None

    # Taken, and without effect.
    metadata: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_key: Text | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: Text | None = None
    safety_identifier: Text | None = None
    service_tier: Text | None = None
    store: bool | None = None
    user: Text | None = None

    # Refused, but for values that ask for nothing.
    function_call: Any = None
    functions: list[Any] | None = None
    logit_bias: dict[str, Any] | None = None
    logprobs: bool | None = None
    moderation: Any = None
    n: Annotated[int, Field(ge=1)] | None = None
    prediction: Any = None
    reasoning_effort: Any = None
    response_format: dict[str, Any] | None = None
    tool_choice: Any = None
    tools: list[Any] | None = None
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    verbosity: Any = None
    web_search_options: Any = None

    # An extension, as those of `Extended`.
    timeline: bool = Field(
        default=False, description="Whether the answer tells when what happened, as `antiphon`."
    )

    @model_validator(mode="after")
    def _check(self) -> ChatRequest:
        """Raises ApiError, with the field that is to blame."""
        for name, harmless in UNSUPPORTED.items():
            value = self.__dict__[name]
            if value is not None and value not in harmless:
                reason = "is not supported with this value; leave it out"
                raise wrong(name, reason, "unsupported_parameter")
        if self.stream_options is not None and not self.stream:
            raise wrong("stream_options", "goes with stream alone; leave it out, or set stream")
        if self.modalities is None or "audio" not in self.modalities:
            return self
        if self.audio is None:
            raise wrong("audio", "is missing; audio is asked for, so give its format and voice")
        if self.stream and self.audio.format != "pcm16":
            reason = f"is {self.audio.format!r}; a streamed answer has pcm16, or leave out stream"
            raise wrong("audio.format", reason)
        if self.stop:
            raise wrong("stop", "is for text alone; leave it out, or ask for text")
        return self

    @property
    def sound(self) -> AudioOptions | None:
        """How the answer is to sound; None if it is text alone."""
        return self.audio if "audio" in (self.modalities or ()) else None

    @property
    def reports_usage(self) -> bool:
        """Whether a stream is to end with the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)
