"""Deadlines that count from the last progress, on a heap with lazy deletion.

Every running key has exactly one heap entry, at or before its real deadline. Progress changes only
the key's record; the entry moves when it comes to the top. So `touch` is O(1) and the others are
O(log n) amortised.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

from antiphon.env import parse_timeout

__all__ = ["Deadlines", "Expired", "effective_timeout", "parse_timeout"]

_COMPACT_AT = 64  # stale entries below this number are not worth a rebuild


@dataclass(frozen=True, slots=True)
class Expired:
    """A key whose time has run out, and the seconds since its last progress."""

    key: str
    waited_s: float


@dataclass(slots=True)
class _Record:
    timeout_s: float
    since: float  # clock value of the last progress
    entry: int  # number of its heap entry; 0: never expires, has none

    @property
    def due(self) -> float:
        return self.since + self.timeout_s


class Deadlines:
    """Timers by key. `clock` gives seconds and never goes back. Not thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._records: dict[str, _Record] = {}
        self._heap: list[tuple[float, int, str]] = []  # (not after the due time, entry, key)
        self._stale = 0  # heap entries whose key has been cleared or started anew
        self._last_entry = 0
        self._paused_at: float | None = None  # clock value
        self._lost = 0.0  # seconds that have passed in pauses: they count for nobody

    def _now(self) -> float:
        """The time that counts: the clock's, less all pauses."""
        clock = self._clock() if self._paused_at is None else self._paused_at
        return clock - self._lost

    def pause(self) -> None:
        """No time passes until `resume`; nothing expires. May be called twice."""
        if self._paused_at is None:
            self._paused_at = self._clock()

    def resume(self) -> None:
        """Time passes again, from where it stood. Ignored while it does."""
        if self._paused_at is not None:
            self._lost += self._clock() - self._paused_at
            self._paused_at = None

    def start(self, key: str, timeout_s: float) -> None:
        """Count from now; a key that runs already is started anew. 0 never expires.

        Raises ValueError for a negative or non-finite timeout.
        """
        if not (math.isfinite(timeout_s) and timeout_s >= 0):
            raise ValueError(f"timeout of {key} is {timeout_s}; it must be finite and not negative")
        self.clear(key)
        record = _Record(timeout_s, self._now(), 0)
        self._records[key] = record
        if timeout_s > 0:
            self._last_entry += 1
            record.entry = self._last_entry
            heapq.heappush(self._heap, (record.due, record.entry, key))

    def touch(self, key: str) -> None:
        """Progress has been seen: the time counts anew. KeyError for a key that does not run."""
        self._records[key].since = self._now()

    def clear(self, key: str) -> None:
        """Forget a key; unknown ones are ignored."""
        record = self._records.pop(key, None)
        if record is not None and record.entry:
            self._stale += 1
            self._compact()

    def expired(self) -> list[Expired]:
        """The keys whose time has run out, longest due first; each is reported once."""
        now = self._now()
        found: list[Expired] = []
        while (due := self._earliest()) is not None and due <= now:
            _, _, key = heapq.heappop(self._heap)
            found.append(Expired(key, now - self._records.pop(key).since))
        return found

    def next_due(self) -> float | None:
        """Clock value of the earliest deadline, None if nothing can expire."""
        earliest = self._earliest()
        return None if earliest is None or self._paused_at is not None else earliest + self._lost

    def _earliest(self) -> float | None:
        while self._heap:
            at, entry, key = self._heap[0]
            record = self._records.get(key)
            if record is None or record.entry != entry:
                heapq.heappop(self._heap)
                self._stale -= 1
            elif record.due > at:
                heapq.heapreplace(self._heap, (record.due, entry, key))
            else:
                return at
        return None

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, key: object) -> bool:
        return key in self._records

    def check_integrity(self) -> None:
        """Raise AssertionError if heap and records disagree."""
        live = {key: (at, entry) for at, entry, key in self._heap if self._is_live(key, entry)}
        timed = {key for key, record in self._records.items() if record.entry}
        if live.keys() != timed:
            raise AssertionError("a running key has no heap entry")
        if len(self._heap) != len(live) + self._stale:
            raise AssertionError("stale heap entries are miscounted")
        if self._stale > max(_COMPACT_AT, len(live)):
            raise AssertionError("the heap grows with what has been cleared")
        for key, (at, _) in live.items():
            if at > self._records[key].due:
                raise AssertionError(f"{key} would expire late")

    def _is_live(self, key: str, entry: int) -> bool:
        record = self._records.get(key)
        return record is not None and record.entry == entry

    def _compact(self) -> None:
        """Rebuild the heap once stale entries outnumber live ones, so that memory is bounded."""
        if self._stale <= max(_COMPACT_AT, len(self._heap) - self._stale):
            return
        self._heap = [item for item in self._heap if self._is_live(item[2], item[1])]
        heapq.heapify(self._heap)
        self._stale = 0


def effective_timeout(setting: float, request: float | None) -> float:
    """Seconds: the smaller of the stage's setting and the request's; 0 counts as infinite."""
    if request is None or request == 0:
        return setting
    return request if setting == 0 else min(setting, request)
