"""What a caller got from a server, and when; times are in seconds from the sending of the call."""

from __future__ import annotations

import binascii
import enum
import itertools
import time
from dataclasses import dataclass, field

from antiphon.bench.serve_sse import Usage
from antiphon.core.continuity import Continuity, ContinuityMeter

SAMPLE_RATE = 24_000
"""Hz of OpenAI's raw sound, `pcm` and `pcm16`, which does not say so itself."""
_SAMPLE_BYTES = 2

clock = time.perf_counter
"""Of all times here."""


class AnswerError(Exception):
    """The server did not answer as it should have; the message is one line."""


class Ending(enum.StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    DISCONNECTED = "disconnected"  # by the caller, as it was meant to


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one call."""

    ending: Ending
    error: str  # "" unless it failed
    start_s: float  # of the sending, on the clock of the run
    latency_s: float  # to the last text or sound; if it did not complete, to its end
    text: str
    ttft_s: float | None  # to the first text that is not empty
    itl_s: tuple[float, ...]  # between one piece of text and the next
    ttfa_s: float | None  # to the first sound
    continuity: Continuity | None  # of a playback that starts with the first sound
    prompt_tokens: int
    output_tokens: int  # of text
    queue_s: float = 0.0  # from when it was due to its sending

    @property
    def tpot_s(self) -> float | None:
        """Time per token of text after the first."""
        if self.output_tokens < 2 or not self.itl_s:
            return None
        return sum(self.itl_s) / (self.output_tokens - 1)

    @property
    def audio_s(self) -> float:
        """How long its sound plays."""
        return 0.0 if self.continuity is None else self.continuity.audio_s

    @property
    def rtf(self) -> float | None:
        """The call's time over its sound's; below 1 is faster than it plays."""
        return self.latency_s / self.audio_s if self.audio_s > 0 else None


@dataclass(slots=True)
class AnswerMeter:
    """Takes down one answer while it comes; every time is of one monotonic clock."""

    start_s: float
    _text: list[str] = field(default_factory=list)
    _text_times: list[float] = field(default_factory=list)
    _first_audio_s: float | None = None
    _last_s: float | None = None
    _continuity: ContinuityMeter = field(default_factory=ContinuityMeter)
    _odd_bytes: int = 0  # of a sample whose rest has not come
    _usage: Usage = Usage()  # noqa: RUF009 - frozen

    def begin(self, at_s: float) -> None:
        """Only now is the question sent: what was before is no part of the answer's time."""
        self.start_s = at_s

    def text(self, piece: str, at_s: float) -> None:
        """The next piece of text; one that is empty is none."""
        if piece:
            self._text.append(piece)
            self._text_times.append(at_s)
            self._last_s = at_s

    def audio(self, num_bytes: int, at_s: float) -> None:
        """The next bytes of 16-bit mono sound at SAMPLE_RATE; they need not be whole samples."""
        if not num_bytes:
            return
        samples, self._odd_bytes = divmod(self._odd_bytes + num_bytes, _SAMPLE_BYTES)
        self._continuity.add(at_s, samples / SAMPLE_RATE)
        self._last_s = at_s
        if self._first_audio_s is None:
            self._first_audio_s = at_s

    def usage(self, usage: Usage) -> None:
        """The server's own count."""
        self._usage = usage

    def answer(self, ending: Ending, at_s: float, error: str = "") -> Answer:
        """What there was, up to its end at `at_s`.

        A server that does not say how many tokens there were is taken to have sent one at a time.
        """
        times = self._text_times
        last_s = at_s
        if ending is Ending.COMPLETED and self._last_s is not None:
            last_s = self._last_s
        heard = self._first_audio_s is not None
        return Answer(
            ending=ending,
            error=error,
            start_s=self.start_s,
            latency_s=last_s - self.start_s,
            text="".join(self._text),
            ttft_s=times[0] - self.start_s if times else None,
            itl_s=tuple(b - a for a, b in itertools.pairwise(times)),
            ttfa_s=self._first_audio_s - self.start_s if self._first_audio_s is not None else None,
            continuity=self._continuity.report() if heard else None,
            prompt_tokens=self._usage.prompt_tokens,
            output_tokens=self._usage.text_tokens or len(times),
        )


def num_bytes(base64: str) -> int:
    """Of what is encoded. Raises AnswerError if nothing is."""
    try:
        return len(binascii.a2b_base64(base64, strict_mode=True)) if base64 else 0
    except binascii.Error as error:
        raise AnswerError(f"sound is not base64: {error}") from error


def one_line(what: object) -> str:
    """As part of a message; of an error with its name."""
    kind = f"{type(what).__name__}: " if isinstance(what, BaseException) else ""
    return f"{kind}{' '.join(str(what).split())}"
