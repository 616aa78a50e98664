"""How much memory this process takes, and whether that grows."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_STATM = Path("/proc/self/statm")
_SAMPLES = 200


def resident_bytes() -> int:
    """Of this process, shared memory that it has mapped included."""
    return int(_STATM.read_text().split()[1]) * _PAGE


class Resident:
    """Resident memory over a number of repetitions; `note` comes after each."""

    def __init__(self, repetitions: int) -> None:
        self._every = max(1, repetitions // _SAMPLES)
        self._count = 0
        self._seen: list[int] = []

    def note(self) -> None:
        self._count += 1
        if self._count % self._every == 0:
            self._seen.append(resident_bytes())

    @property
    def growth(self) -> float:
        """Bytes between the second and the last quarter, by their medians. The first quarter warms
        caches and allocators up.
        """
        quarter = len(self._seen) // 4
        early, late = self._seen[quarter : 2 * quarter], self._seen[-quarter:]
        return statistics.median(late) - statistics.median(early)
