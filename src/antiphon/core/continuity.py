"""What a listener hears of a stream of audio chunks: where playback runs dry, and for how long."""

from __future__ import annotations

import math
from dataclasses import dataclass

CONTINUITY_LIMIT_S = 0.1  # longest silence in the middle that still counts as continuous


@dataclass(frozen=True, slots=True)
class Continuity:
    """How playback went. Times are in seconds of silence between sound and sound.

    The wait for the first sound is none of them, nor is what follows the last.
    """

    chunks: int  # added, empty ones included
    audio_s: float
    worst_underrun_s: float  # the longest single one
    total_underrun_s: float  # short ones included
    gaps: int  # underruns longer than CONTINUITY_LIMIT_S

    @property
    def continuous(self) -> bool:
        """No underrun is longer than CONTINUITY_LIMIT_S."""
        return self.worst_underrun_s <= CONTINUITY_LIMIT_S


class ContinuityMeter:
    """Plays one stream in thought: from the arrival of its first sound, each chunk after the last.

    A chunk without audio (an end mark) is not heard: it neither starts playback nor splits or ends
    a silence. Memory is constant.
    """

    def __init__(self) -> None:
        self._chunks = 0
        self._arrived_s = -math.inf  # arrival of the latest chunk
        self._audio_s = 0.0
        self._plays_until_s: float | None = None  # None: nothing has been heard yet
        self._worst_s = 0.0
        self._total_s = 0.0
        self._gaps = 0

    def add(self, arrival_s: float, duration_s: float) -> None:
        """The next chunk, in order: when it arrived (any clock) and how long it plays.

        ValueError, and nothing is added, for an arrival before the previous chunk's, a negative
        duration, and values that are not finite.
        """
        if not (math.isfinite(arrival_s) and arrival_s >= self._arrived_s):
            raise ValueError(
                f"a chunk arrived at {arrival_s} s after one at {self._arrived_s} s;"
                " arrivals have to be finite and must not go back"
            )
        if not (math.isfinite(duration_s) and duration_s >= 0):
            raise ValueError(f"a chunk lasts {duration_s} s; it has to be finite and 0 or more")
        self._chunks += 1
        self._arrived_s = arrival_s
        if duration_s > 0:
            self._play(arrival_s, duration_s)

    def _play(self, arrival_s: float, duration_s: float) -> None:
        due_s = arrival_s if self._plays_until_s is None else self._plays_until_s
        underrun_s = max(0.0, arrival_s - due_s)
        self._worst_s = max(self._worst_s, underrun_s)
        self._total_s += underrun_s
        self._gaps += underrun_s > CONTINUITY_LIMIT_S
        self._plays_until_s = max(arrival_s, due_s) + duration_s
        self._audio_s += duration_s

    def report(self) -> Continuity:
        """How playback has gone so far."""
        return Continuity(self._chunks, self._audio_s, self._worst_s, self._total_s, self._gaps)
