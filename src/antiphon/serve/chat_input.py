"""From the body of a chat call to the request that the pipeline gets."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass

from antiphon.errors import CallerError, InputTooLongError
from antiphon.orchestrator.api import OmniRequest
from antiphon.pipeline.audio import MAX_CLIPS, AudioClip
from antiphon.pipeline.topology import Entry, Topology, writer
from antiphon.serve import sound_in
from antiphon.serve.chat_protocol import (
    AssistantMessage,
    AudioPart,
    ChatRequest,
    TextPart,
    UserMessage,
)
from antiphon.serve.endpoints import entry_for
from antiphon.serve.errors import wrong
from antiphon.serve.past_answers import PastAnswers
from antiphon.serve.sound_out import FORMATS
from antiphon.serve.voices import voice_params

ENTRY = "chat"

Turn = dict[str, str | list[AudioClip]]  # as OmniRequest.messages has them


@dataclass(frozen=True, slots=True)
class Context:
    """What a call comes with beside its body."""

    request_id: str
    deadline_s: float | None
    trace_headers: Mapping[str, str]


async def omni_request(
    body: ChatRequest, context: Context, topology: Topology, past: PastAnswers, max_audio_s: float
) -> OmniRequest:
    """The pipeline's request; sound is decoded on a thread.

    Raises ApiError and CallerError for what cannot be asked of this pipeline.
    """
    entry = entry_for(topology, ENTRY)
    _check_format(body)
    reader = _Reader(entry, past, max_audio_s)
    messages = await reader.turns(body)
    modalities = _modalities(body, topology)
    path = topology.path_from(ENTRY, modalities, heard=reader.clips > 0)
    spoken = {} if body.sound is None else voice_params(entry, body.sound.voice_name)
    sampling: dict[str, dict[str, object]] = {name: dict(of) for name, of in body.sampling.items()}
    if usual := _sampling(body):
        stage = writer(path).name
        sampling[stage] = usual | sampling.get(stage, {})
    return OmniRequest(
        entry=ENTRY,
        messages=messages,
        modalities=modalities,
        sampling=sampling,
        stop=tuple(body.stop or ()),
        params={**spoken, **body.params},
        deadline_s=context.deadline_s,
        request_id=context.request_id,
        trace_headers=dict(context.trace_headers),
    )


def _check_format(body: ChatRequest) -> None:
    if body.sound is not None and body.sound.format not in FORMATS:
        reason = f"is {body.sound.format!r}; this server has {', '.join(FORMATS)}"
        raise wrong("audio.format", reason)


def _modalities(body: ChatRequest, topology: Topology) -> tuple[str, ...]:
    """As OpenAI: text unless told otherwise, and sound always with its transcript."""
    asked = tuple(dict.fromkeys(body.modalities or ("text",)))
    if asked == ("audio",) and "text" in topology.outputs_from(ENTRY):
        return ("text", "audio")
    return asked


def _sampling(body: ChatRequest) -> dict[str, object]:
    """OpenAI's fields, which are for the stage that writes the text."""
    given: dict[str, object] = {
        "max_tokens": body.max_completion_tokens or body.max_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "seed": body.seed,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
    }
    return {name: value for name, value in given.items() if value is not None}


class _Reader:
    """Reads the messages of one call; errors name the place."""

    def __init__(self, entry: Entry, past: PastAnswers, max_audio_s: float) -> None:
        self._entry = entry
        self._past = past
        self._max_s = self._left_s = max_audio_s
        self.clips = 0

    async def turns(self, body: ChatRequest) -> list[Turn]:
        """The conversation as OmniRequest has it."""
        found = []
        for index, message in enumerate(body.messages):
            match message:
                case UserMessage():
                    found.append(await self._user(message, f"messages.{index}.content"))
                case AssistantMessage():
                    text = self._assistant(message, f"messages.{index}")
                    found.append(Turn(role="assistant", content=text))
                case _:
                    text = _joined([part.text for part in message.content])
                    found.append(Turn(role="system", content=text))
        return found

    async def _user(self, message: UserMessage, place: str) -> Turn:
        texts = [part.text for part in message.content if isinstance(part, TextPart)]
        turn = Turn(role="user", content=_joined(texts))
        clips = []
        for index, part in enumerate(message.content):
            if isinstance(part, AudioPart):
                clips.append(await self._clip(part, f"{place}.{index}.input_audio"))
        if clips:
            turn["audio"] = clips
        return turn

    async def _clip(self, part: AudioPart, place: str) -> AudioClip:
        if "audio" not in self._entry.inputs:
            raise wrong(place, "is sound, which this pipeline does not hear; give text")
        self.clips += 1
        if self.clips > MAX_CLIPS:
            raise wrong(place, f"is one clip too many; give at most {MAX_CLIPS}")
        try:
            data = base64.b64decode(part.input_audio.data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise wrong(f"{place}.data", f"is no base64: {error}") from None
        place += ".data"
        try:
            clip = await sound_in.decode(data, max_s=self._left_s, name=place)
        except InputTooLongError as error:
            reason = f"makes it more than {self._max_s:g} s of sound in one call; give less"
            raise wrong(place, reason, error.code) from None
        except CallerError as error:
            raise wrong(place, str(error).removeprefix(f"{place} "), error.code) from None
        self._left_s = max(0.0, self._left_s - clip.seconds)
        return clip

    def _assistant(self, message: AssistantMessage, place: str) -> str:
        if message.content is not None:
            said = [p.text if isinstance(p, TextPart) else p.refusal for p in message.content]
            return _joined(said)
        if message.audio is None:
            raise wrong(place, "has neither content nor audio; give one of them")
        spoken = self._past.transcript(message.audio.id)
        if spoken is None:
            spoken = message.audio.transcript
        if spoken is None:
            raise wrong(
                f"{place}.audio.id",
                f"is {message.audio.id!r}, an answer that is not known (any more); give its"
                " transcript, as content",
            )
        return spoken


def _joined(texts: list[str]) -> str:
    return "\n".join(texts)
