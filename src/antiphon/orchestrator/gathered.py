"""What a request has brought so far, as its caller sees it: text, sound and pictures, and when.

Sound is handed out in the order of its parts: that of the first unfinished part as it comes, that
of later ones when their turn has come. Pictures are handed out as they come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from antiphon.core.continuity import ContinuityMeter
from antiphon.errors import StageError
from antiphon.orchestrator.api import (
    AudioChunk,
    Image,
    ImageChunk,
    OmniEvent,
    OmniRequest,
    Reply,
    Samples,
    StageTiming,
    TextDelta,
    Timings,
    TranscriptDelta,
    Usage,
)
from antiphon.orchestrator.stop_strings import StopStrings
from antiphon.orchestrator.transcript import Transcript
from antiphon.pipeline.detokenize import Detokenizer


@dataclass(slots=True)
class Unit:
    """One request at one stage; times are clock values in seconds."""

    part: int
    submitted_s: float
    input_s: float | None  # None: it waits for its input
    first_s: float | None = None
    last_s: float | None = None
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    finish: str | None = None
    audio: list[Samples] = field(default_factory=list)  # that is not its turn yet


@dataclass(slots=True)
class Gathered:
    """The text, sound and pictures of one request. Times are clock values in seconds."""

    request: OmniRequest
    detokenizer: Detokenizer | None
    sample_rate: int
    started_s: float
    transcript: Transcript | None = None  # None: nobody has asked for it
    text: list[str] = field(default_factory=list)
    audio: list[Samples] = field(default_factory=list)  # handed out
    audio_part: int = 0  # whose turn it is
    images: dict[int, Image] = field(default_factory=dict)  # by part
    first_text_s: float | None = None
    first_audio_s: float | None = None
    first_image_s: float | None = None
    meter: ContinuityMeter = field(default_factory=ContinuityMeter)
    stops: StopStrings = field(init=False)
    # Arrivals, in seconds since the start: of text with its tokens, of sound with its length.
    text_s: list[tuple[float, int]] = field(default_factory=list)
    audio_s: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stops = StopStrings(self.request.stop)

    @property
    def empty(self) -> bool:
        """Whether nothing has been handed out yet."""
        return self.first_text_s is self.first_audio_s is self.first_image_s is None

    def on_tokens(self, token_ids: Sequence[int], now: float) -> list[OmniEvent]:
        """Sampled tokens that are text."""
        text = "" if self.detokenizer is None else self.detokenizer.feed(token_ids)
        return self._on_text(text, len(token_ids), now)

    def on_heard(
        self, unit: Unit, token_ids: Sequence[int], now: float, *, ended: bool = False
    ) -> list[OmniEvent]:
        """Sampled tokens that say what a sound says; `ended`: there are no more of it."""
        if self.transcript is None:
            return []
        text = self.transcript.on_tokens(unit.part, token_ids)
        if ended:
            text += self.transcript.on_end(unit.part)
        if self.transcript.answers:
            return self._on_text(text, len(token_ids), now)
        return [TranscriptDelta(text)] if text else []

    def _on_text(self, text: str, tokens: int, now: float) -> list[OmniEvent]:
        if tokens:
            self.text_s.append((now - self.started_s, tokens))
        return self._show(self.stops.feed(text), now)

    def on_text_end(self, now: float) -> list[OmniEvent]:
        """No more text comes: what might have become a stop string is text."""
        return self._show(self.stops.rest(), now)

    def _show(self, text: str, now: float) -> list[OmniEvent]:
        if not text:
            return []
        if self.first_text_s is None:
            self.first_text_s = now
        self.text.append(text)
        return [TextDelta(text)]

    def on_image(self, unit: Unit, image: Image, now: float) -> list[OmniEvent]:
        """A picture, which comes whole, one for each unit. Raises StageError for a second one."""
        if not self.request.wants("image"):
            return []
        if unit.part in self.images:
            raise StageError("a stage put out a second picture for one request")
        self.images[unit.part] = image
        if self.first_image_s is None:
            self.first_image_s = now
        return [ImageChunk(image, unit.part)]

    def hand_out_audio(self, units: Sequence[Unit], now: float) -> list[OmniEvent]:
        """What may be heard now: the part whose turn it is, and those behind it that follow."""
        events: list[OmniEvent] = []
        while self.audio_part < len(units):
            unit = units[self.audio_part]
            if self.request.wants("audio"):
                for samples in unit.audio:
                    self.first_audio_s = now if self.first_audio_s is None else self.first_audio_s
                    heard = (now - self.started_s, samples.size / self.sample_rate)
                    self.meter.add(*heard)
                    self.audio_s.append(heard)
                    events.append(AudioChunk(samples, self.sample_rate, self.audio_part))
                self.audio += unit.audio
            unit.audio = []
            if unit.finish is None:
                break
            self.audio_part += 1
        return events

    def reply(self, finish_reason: str, timings: Timings, usage: Usage) -> Reply:
        """What there is, so far or at last."""
        return Reply(
            text="".join(self.text),
            audio=np.concatenate(self.audio) if self.audio else None,
            sample_rate=self.sample_rate,
            finish_reason=finish_reason,
            timings=timings,
            images=[self.images[part] for part in sorted(self.images)],
            usage=usage,
            transcript=None if self.transcript is None else self.transcript.text,
        )

    def timings(self, units: Mapping[str, Sequence[Unit]], end_s: float) -> Timings:
        """When things have happened, so far or at last. `units` by stage."""
        heard = self.meter.report()
        return Timings(
            total_s=end_s - self.started_s,
            ttft_s=self._since_start(self.first_text_s),
            ttfa_s=self._since_start(self.first_audio_s),
            audio_s=heard.audio_s,
            continuity=heard if self.audio else None,
            stages={stage: _stage_timing(of_stage) for stage, of_stage in units.items()},
            ttfi_s=self._since_start(self.first_image_s),
        )

    def _since_start(self, moment: float | None) -> float | None:
        return None if moment is None else moment - self.started_s


def _stage_timing(units: Sequence[Unit]) -> StageTiming:
    ran = [unit for unit in units if unit.first_s is not None]
    return StageTiming(
        queue_s=sum((unit.first_s or 0.0) - (unit.input_s or unit.submitted_s) for unit in ran),
        run_s=sum((unit.last_s or unit.first_s or 0.0) - (unit.first_s or 0.0) for unit in ran),
        tokens=sum(unit.tokens for unit in ran),
    )
