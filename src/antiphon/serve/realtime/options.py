"""How a conversation and each of its answers are to be: what callers may set, what is served."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.errors import InvalidRequestError
from antiphon.pipeline.topology import Entry, Topology
from antiphon.serve.errors import ApiError
from antiphon.serve.realtime.client_events import (
    AnswerGiven,
    FormatGiven,
    InputGiven,
    OutputGiven,
    ResponseGiven,
    SessionGiven,
    TranscriptionGiven,
    VoiceGiven,
)
from antiphon.serve.realtime.server_events import (
    RATE,
    AudioBody,
    InputBody,
    OutputBody,
    SessionBody,
    Transcription,
)
from antiphon.serve.voices import DEFAULT, SPEAKER, voice_params

ENTRY = "chat"
HEARING = "transcribe"
Output = Literal["audio", "text"]


class Abilities(msgspec.Struct, frozen=True, kw_only=True):
    """What the pipeline can do in a conversation."""

    model: str
    outputs: tuple[Output, ...]  # of which an answer has one; text alone, or sound and its text
    writes: bool  # answers have a text
    hears: bool  # the thinker takes sound itself, or has an ear
    transcribes: bool
    reads_transcripts: bool  # what is heard reaches the thinker as text in any case
    entry: Entry  # which answers
    text_stage: str | None  # whose sampling parameters an answer's are
    sample_rate: int  # of the answers, Hz

    @classmethod
    def of(cls, topology: Topology, started: Collection[str], model: str) -> Abilities:
        """`started` are the names of the stages that run.

        Raises ApiError if the pipeline does not answer.
        """
        entries = {entry.name: entry for entry in topology.entries}
        possible: list[Output] = [o for o in ("audio", "text") if _runs(topology, started, o)]
        if ENTRY not in entries or not possible:
            raise ApiError(
                400,
                f"{model!r} holds no conversations; use another of its calls",
                code="unsupported_endpoint",
                param="model",
            )
        chat, given = entries[ENTRY], topology.outputs_from(ENTRY)
        heard_at = chat.start(heard=True)
        hears = "audio" in chat.inputs and heard_at in started
        transcribes = HEARING in entries and entries[HEARING].stage in started
        writers = [s.name for s in topology.path_from(ENTRY, None) if s.output == "text"]
        return cls(
            model=model,
            outputs=tuple(possible),
            writes="text" in given,
            hears=hears,
            transcribes=transcribes,
            reads_transcripts=transcribes and (not hears or chat.ear is not None),
            entry=chat,
            text_stage=writers[0] if writers else None,
            sample_rate=topology.sample_rate,
        )


def _runs(topology: Topology, started: Collection[str], output: Output) -> bool:
    """Whether every stage is there that this output needs, and its text if it has one."""
    try:
        given = topology.outputs_from(ENTRY)
        wanted = [m for m in {"text", output} if m in given or m == output]
        return {stage.name for stage in topology.path_from(ENTRY, wanted)} <= set(started)
    except InvalidRequestError:
        return False


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Of a session, or of one answer, which begins with its session's."""

    output: Output
    voice: str | None = None
    """A speaker of the pipeline; None is the one that it has without being told."""
    instructions: str = ""
    max_output_tokens: int | None = None
    temperature: float | None = None
    transcription: bool = False
    forgets: bool = True
    """Whether the oldest messages are left out when the model's context is full."""

    def params(self) -> dict[str, bool | int | float | str]:
        """`OmniRequest.params`."""
        return {} if self.voice is None else {SPEAKER: self.voice}

    def sampling(self, abilities: Abilities) -> dict[str, dict[str, object]]:
        """`OmniRequest.sampling`."""
        given: dict[str, object] = {}
        if self.max_output_tokens is not None:
            given["max_tokens"] = self.max_output_tokens
        if self.temperature is not None:
            given["temperature"] = self.temperature
        return {abilities.text_stage: given} if given and abilities.text_stage else {}

    def modalities(self, abilities: Abilities) -> tuple[str, ...]:
        """`OmniRequest.modalities`."""
        if self.output == "text":
            return ("text",)
        return ("text", "audio") if abilities.writes else ("audio",)

    def shown_max(self) -> int | str:
        return "inf" if self.max_output_tokens is None else self.max_output_tokens

    def shown_voice(self) -> str:
        return self.voice or DEFAULT

    def session_body(self, id: str, abilities: Abilities) -> SessionBody:
        """As it is told to the caller: what holds, not what has been asked for."""
        heard = Transcription(abilities.model) if self.transcription else None
        return SessionBody(
            id=id,
            model=abilities.model,
            output_modalities=[self.output],
            instructions=self.instructions,
            max_output_tokens=self.shown_max(),
            temperature=self.temperature,
            truncation="auto" if self.forgets else "disabled",
            audio=AudioBody(
                input=InputBody(transcription=heard),
                output=OutputBody(voice=self.shown_voice(), speed=1.0),
            ),
        )


def updated(options: Options, given: SessionGiven, abilities: Abilities) -> Options:
    """`options` with what a caller asks of the session. Raises ApiError, naming the field."""
    if given.model not in (UNSET, abilities.model):
        raise _refused("session.model", f"this conversation is with {abilities.model!r}")
    _check_unserved(given, "session", _OF_ANSWERS | _OF_SESSIONS)
    new = _answering(options, given, abilities, "session")
    if not isinstance(given.truncation, UnsetType):
        new = msgspec.structs.replace(new, forgets=given.truncation == "auto")
    if isinstance(given.audio, UnsetType):
        return new
    if not isinstance(given.audio.output, UnsetType):
        new = _speaking(new, given.audio.output, abilities, "session.audio.output")
    if not isinstance(given.audio.input, UnsetType):
        new = _hearing(new, given.audio.input, abilities)
    return new


def overridden(options: Options, given: ResponseGiven, abilities: Abilities) -> Options:
    """The session's `options` with those of one answer. Raises ApiError, naming the field."""
    _check_unserved(given, "response", _OF_ANSWERS)
    new = _answering(options, given, abilities, "response")
    audio = given.audio
    if isinstance(audio, UnsetType) or isinstance(audio.output, UnsetType):
        return new
    return _speaking(new, audio.output, abilities, "response.audio.output")


# --- parts ----------------------------------------------------------------------------------------

_NOTHING: tuple[object, ...] = (UNSET, None, [], {})
_NO_TOOLS = (*_NOTHING, "auto", "none")
_EITHER_WAY = (*_NOTHING, True, False)
_OF_ANSWERS = {
    "tools": (_NOTHING, "there are no tools"),
    "tool_choice": (_NO_TOOLS, "there are no tools"),
    "parallel_tool_calls": (_EITHER_WAY, "there are no tools"),
    "prompt": (_NOTHING, "there are no stored prompts; give instructions"),
    "reasoning": (_NOTHING, "the pipeline's models do not reason"),
}
_OF_SESSIONS = {
    "tracing": (_NOTHING, "give a traceparent header with the connection"),
    "include": (_NOTHING, "no further fields can be included"),
}
_OF_INPUTS = {
    "noise_reduction": (_NOTHING, "sound is taken as it comes"),
    "turn_detection": (
        _NOTHING,
        "voice activity is not detected here; send input_audio_buffer.commit when the caller has"
        " spoken, then response.create",
    ),
}
_OF_TRANSCRIPTIONS = dict.fromkeys(
    ("language", "languages", "prompt", "keywords", "delay"),
    (_NOTHING, "the pipeline's hearing takes no such hint"),
)


def _refused(field: str, why: str) -> ApiError:
    return ApiError(400, f"{field}: {why}", code="unsupported_value", param=field)


def _check_unserved(
    given: msgspec.Struct, place: str, fields: dict[str, tuple[tuple[object, ...], str]]
) -> None:
    """Raise ApiError for a field that asks for what is not served."""
    values = msgspec.structs.asdict(given)
    for name, (harmless, why) in fields.items():
        if values[name] not in harmless:
            raise _refused(f"{place}.{name}", why)


def _answering(options: Options, given: AnswerGiven, abilities: Abilities, place: str) -> Options:
    """What is set alike for a session and an answer."""
    new: dict[str, object] = {}
    if not isinstance(given.instructions, UnsetType):
        new["instructions"] = given.instructions
    if not isinstance(given.output_modalities, UnsetType):
        wanted = given.output_modalities
        if len(wanted) != 1 or wanted[0] not in abilities.outputs:
            offered = " or ".join(f'["{output}"]' for output in abilities.outputs)
            raise _refused(f"{place}.output_modalities", f"give {offered}")
        new["output"] = wanted[0]
    most, temperature = given.max_output_tokens, given.temperature
    if abilities.text_stage is None and (
        isinstance(most, int) or isinstance(temperature, float | int)
    ):
        raise _refused(place, "no stage of this pipeline samples text")
    if not isinstance(most, UnsetType):
        new["max_output_tokens"] = most if isinstance(most, int) else None
    if not isinstance(temperature, UnsetType):
        new["temperature"] = temperature
    return msgspec.structs.replace(options, **new)


def _speaking(options: Options, given: OutputGiven, abilities: Abilities, place: str) -> Options:
    _check_format(given.format, place)
    if given.speed not in (UNSET, 1.0):
        raise _refused(f"{place}.speed", "speech has one speed, 1.0")
    voice = given.voice
    if isinstance(voice, UnsetType):
        return options
    name = voice.id if isinstance(voice, VoiceGiven) else voice
    return msgspec.structs.replace(options, voice=voice_params(abilities.entry, name).get(SPEAKER))


def _hearing(options: Options, given: InputGiven, abilities: Abilities) -> Options:
    place = "session.audio.input"
    _check_format(given.format, place)
    _check_unserved(given, place, _OF_INPUTS)
    wanted = given.transcription
    if isinstance(wanted, UnsetType):
        return options
    if isinstance(wanted, TranscriptionGiven):
        _check_unserved(wanted, f"{place}.transcription", _OF_TRANSCRIPTIONS)
        if not abilities.transcribes:
            raise _refused(f"{place}.transcription", "this pipeline writes nothing down; give null")
    return msgspec.structs.replace(options, transcription=wanted is not None)


def _check_format(given: FormatGiven | UnsetType, place: str) -> None:
    if isinstance(given, UnsetType):
        return
    if given.type != "audio/pcm" or given.rate not in (None, RATE):
        raise _refused(f"{place}.format", f"sound is audio/pcm at {RATE} Hz, in and out")
