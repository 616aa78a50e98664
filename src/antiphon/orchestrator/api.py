"""What callers give and get: requests, events and replies. Imports neither vllm nor torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from antiphon.core.continuity import Continuity
from antiphon.env import parse_timeout
from antiphon.errors import (
    EmptyInputError,
    InputTooLongError,
    InvalidRequestError,
    SettingError,
)
from antiphon.observe.record import Timeline
from antiphon.orchestrator.conversation import Messages, check_messages
from antiphon.orchestrator.png import save_png
from antiphon.orchestrator.sampling import check_sampling
from antiphon.orchestrator.stop_strings import check_stops
from antiphon.orchestrator.wav import save_wav
from antiphon.pipeline.audio import MAX_CLIPS, MAX_SECONDS, AudioClip
from antiphon.pipeline.entry import Message
from antiphon.pipeline.suggest import did_you_mean
from antiphon.pipeline.topology import Stage, Topology

Samples = npt.NDArray[np.float32]
Image = npt.NDArray[np.uint8]

MAX_COMPANIONS = 16
MAX_TEXT_CHARS = 1 << 19
"""Of all messages together. It takes a quarter of a second to be cut into tokens, and fits no model
that is served here.
"""


class OmniRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One call of a pipeline. Nothing is checked before `check`."""

    entry: str = "chat"
    """The entry of the topology that the request goes through."""

    text: str = ""
    """What to answer or to speak; after `messages` it is one more message of the user."""

    messages: Messages = []
    """A conversation: dicts with `role` (system, user, assistant) and `content`.

    A user's may have clips as well, `audio`; they come before its content.
    """

    audio: Sequence[AudioClip] = ()
    """What is heard before `text`, which may be empty then; only where the entry takes audio."""

    modalities: tuple[str, ...] | None = None
    """What to give back; None is everything that the entry gives.

    "transcript" is what is said in the request's audio, where a stage of the pipeline writes it
    down; beside an answer it has to be asked for. The request visits no stage that this does not
    need.
    """

    n: int = 1
    """How many outputs of the last stage to make, 1 to 16: they share what leads to them.

    Only where the pipeline has an edge for it: several pictures of one answer.
    """

    sampling: dict[str, dict[str, object]] = {}
    """Sampling parameters by stage name, over the topology's own."""

    stop: tuple[str, ...] = ()
    """The text ends before the first of these strings that is complete, and the request with it.

    At most 4, each of 1 to 256 characters; only where nothing else is made of the text.
    """

    params: dict[str, bool | int | float | str] = {}
    """What else the pipeline's models are told, such as the speaker: what its entry names."""

    deadline_s: float | None = None
    """Seconds from submission after which the request fails; None is no deadline."""

    input_wait_timeout_s: float | None = None
    """Seconds that a stage may wait for its input without progress, if less than its own setting.

    0 and None leave the stage's setting as it is.
    """

    request_id: str | None = None
    """The caller's label for the request; never used as a key or a name."""

    trace_headers: dict[str, str] = {}
    """W3C trace context that the request came with; for observers alone."""

    def check(self, topology: Topology) -> tuple[Stage, ...]:
        """The stages that the request visits, producers first.

        Raises EmptyInputError without text, InvalidRequestError for anything that the pipeline
        could not do as asked.
        """
        path = self.check_options(topology)
        turns = self.turns()
        if "text" not in topology.entry(self.entry).inputs:
            self._check_sound_alone(turns)
        if not any(turn.content.strip() or turn.audio for turn in turns[-1:]):
            raise EmptyInputError("the text is empty; give something to answer or to speak")
        self._check_text(turns)
        return path

    def check_options(self, topology: Topology) -> tuple[Stage, ...]:
        """As `check`, without a look at the text: of a session it comes later."""
        self._check_types()
        check_messages(self.messages, topology.entry(self.entry))
        self._check_audio(topology)
        heard = any(turn.audio for turn in self.turns())
        path = topology.path_from(self.entry, self.modalities, heard=heard)
        self._check_companions(topology, path)
        self._check_params(topology)
        deadline = self.deadline_s
        if deadline is not None and not (math.isfinite(deadline) and deadline > 0):
            raise InvalidRequestError(
                f"deadline_s is {deadline}; give a positive number of seconds"
            )
        if self.input_wait_timeout_s is not None:
            try:
                parse_timeout(self.input_wait_timeout_s, "input_wait_timeout_s")
            except SettingError as error:
                raise InvalidRequestError(str(error)) from None
        check_sampling(topology, self.sampling, tuple(stage.name for stage in path))
        check_stops(self.stop, topology, path)
        return path

    def wants(self, modality: str) -> bool:
        """Whether this is to be given back, if the request's way through the pipeline has it."""
        return self.modalities is None or modality in self.modalities

    def _check_text(self, turns: Sequence[Message]) -> None:
        length = sum(len(turn.content) for turn in turns)
        if length > MAX_TEXT_CHARS:
            raise InputTooLongError(
                f"the text has {length} characters; give at most {MAX_TEXT_CHARS}"
            )
        try:
            for turn in turns:
                turn.content.encode()
        except UnicodeEncodeError:
            raise InvalidRequestError("the text is not valid Unicode; give it as UTF-8") from None

    def _check_companions(self, topology: Topology, path: tuple[Stage, ...]) -> None:
        if not 1 <= self.n <= MAX_COMPANIONS:
            raise InvalidRequestError(f"n is {self.n}; give a number from 1 to {MAX_COMPANIONS}")
        if self.n > 1 and not any(edge.shared for edge in topology.edges_among(path)):
            given = ", ".join(stage.output for stage in path if stage.output is not None)
            raise InvalidRequestError(
                f"n is {self.n}, but pipeline {topology.name} makes one output of each kind"
                f" ({given}) per request; leave n out"
            )

    def _check_params(self, topology: Topology) -> None:
        known = topology.entry(self.entry).params
        for name in self.params:
            if name not in known:
                raise InvalidRequestError(
                    f"entry {self.entry} of pipeline {topology.name} takes no parameter {name!r}"
                    f"{did_you_mean(name, known) or '; it takes none'}"
                )

    def _check_types(self) -> None:
        values = msgspec.structs.asdict(self)
        for field_ in msgspec.structs.fields(self):
            if field_.name in ("messages", "sampling"):
                continue  # nested, and checked in words of their own
            try:
                msgspec.convert(values[field_.name], field_.type)
            except msgspec.ValidationError as error:
                reason = str(error).replace("`", "")
                raise InvalidRequestError(
                    f"{field_.name}: {reason[:1].lower()}{reason[1:]}"
                ) from None

    def _check_sound_alone(self, turns: Sequence[Message]) -> None:
        if any(turn.content.strip() for turn in turns):
            raise InvalidRequestError(
                f"entry {self.entry} takes sound alone; leave out text and messages with text"
            )
        if not any(turn.audio for turn in turns):
            raise EmptyInputError(f"entry {self.entry} takes sound, and there is none; give audio")

    def _check_audio(self, topology: Topology) -> None:
        clips = [clip for turn in self.turns() for clip in turn.audio]
        if clips and "audio" not in topology.entry(self.entry).inputs:
            raise InvalidRequestError(
                f"entry {self.entry} of pipeline {topology.name} takes no audio; give text alone"
            )
        if len(clips) > MAX_CLIPS:
            raise InvalidRequestError(
                f"the request has {len(clips)} clips; give at most {MAX_CLIPS}"
            )
        if (seconds := sum(clip.seconds for clip in clips)) > MAX_SECONDS:
            raise InputTooLongError(
                f"the request has {seconds:.0f} s of audio; give at most {MAX_SECONDS:.0f} s"
            )

    def conversation(self) -> list[Mapping[str, str | Sequence[AudioClip]]]:
        """`messages` with `text` and `audio` at the end, if there are any."""
        last: dict[str, str | Sequence[AudioClip]] = {"role": "user", "content": self.text}
        if self.audio:
            last["audio"] = self.audio
        return [*self.messages, *([last] if self.audio or self.text.strip() else [])]

    def turns(self) -> tuple[Message, ...]:
        """`conversation` as an entry's adapter is given it; of messages that have been checked."""
        return msgspec.convert(self.conversation(), tuple[Message, ...])


@dataclass(frozen=True, slots=True)
class StageTiming:
    """What one stage did for a request; sums over its parts."""

    queue_s: float  # seconds from its input's arrival to its first output
    run_s: float  # seconds from its first output to its last
    tokens: int  # sampled; for a generation stage samples of audio, or pixels


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request at the stage that writes the text; without one, where it enters."""

    prompt_tokens: int = 0  # as the model saw them, sounds included
    completion_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, found in a cache


@dataclass(frozen=True, slots=True)
class Timings:
    """When things happened, in seconds from the request's submission."""

    total_s: float  # to the end of the last output
    ttft_s: float | None = None  # to the first text; None without text
    ttfa_s: float | None = None  # to the first audio; None without audio
    audio_s: float = 0.0  # length of the audio
    continuity: Continuity | None = None  # of playback from the first audio on; None without
    stages: dict[str, StageTiming] = field(default_factory=dict)
    ttfi_s: float | None = None  # to the first picture; None without

    @property
    def rtf(self) -> float | None:
        """Seconds of work per second of audio, below 1 is faster than real time; None without."""
        return self.total_s / self.audio_s if self.audio_s > 0 else None


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """The whole answer to a request."""

    text: str
    audio: Samples | None  # [n], -1 to 1
    sample_rate: int  # Hz
    finish_reason: str  # of the text: stop, length, abort, of a session's segment also interrupt
    timings: Timings
    images: list[Image] = field(default_factory=list)  # each [height, width, 3], red, green, blue
    usage: Usage = field(default_factory=Usage)
    timeline: Timeline | None = None  # when what happened where; None for a session's segment
    transcript: str | None = None  # what was said in the request's audio; None unless asked for

    def save(self, path: str | Path) -> Path:
        """Write the audio as 16-bit WAV; the file appears complete or not at all.

        Raises OutputPathError, and InvalidRequestError if there is no audio.
        """
        if self.audio is None:
            raise InvalidRequestError("the reply has no audio; ask for the audio modality")
        return save_wav(path, self.audio, self.sample_rate)

    def save_image(self, path: str | Path, index: int = 0) -> Path:
        """Write one of the pictures as PNG; the file appears complete or not at all.

        Raises OutputPathError, and InvalidRequestError if there is no such picture.
        """
        if not 0 <= index < len(self.images):
            raise InvalidRequestError(
                f"the reply has no picture {index}, it has {len(self.images)}; ask for the image"
                " modality, and for as many as you need with n"
            )
        return save_png(path, self.images[index])


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that is new since the last delta."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class AudioChunk:
    """The next audio of the answer; parts come in order, each in one chunk or several."""

    samples: Samples  # [n], -1 to 1
    sample_rate: int  # Hz
    part: int


@dataclass(frozen=True, slots=True, eq=False)
class ImageChunk:
    """A whole picture of the answer, when it is there; companions come in any order."""

    image: Image  # [height, width, 3], red, green, blue
    index: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request that did not fail."""

    reply: Reply


@dataclass(frozen=True, slots=True)
class TranscriptDelta:
    """What is said in the request's audio, new since the last delta; only where the request asks
    for the modality "transcript" beside an answer.
    """

    text: str


OmniEvent = TextDelta | TranscriptDelta | AudioChunk | ImageChunk | Finished


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """An event of one segment of a session, with the segment's number."""

    segment: int
    event: OmniEvent
