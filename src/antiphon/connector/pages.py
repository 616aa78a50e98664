"""Memory of this process that is written again: what the connector within one keeps.

As in shared memory (`connector.segments`), a page that the kernel has to find and clear costs more
than the bytes that are copied into it.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LARGE_BYTES = 1 << 20  # payloads from here on are written to pages that are kept
MAX_KEPT = 32  # of one connector


@dataclass(slots=True, eq=False)
class Pages:
    """Room for one payload."""

    memory: npt.NDArray[np.uint8]
    payload: weakref.ref[npt.NDArray[np.uint8]]  # gone once nobody stores or views it
    stored: int = 0  # bytes of it that nobody has taken

    @property
    def is_idle(self) -> bool:
        return self.payload() is None


class PagePool:
    """What one connector keeps; not thread-safe."""

    def __init__(self) -> None:
        self._kept: list[Pages] = []  # the one that was written last comes last

    @property
    def spare(self) -> int:
        """Bytes that are kept and store nothing."""
        return sum(pages.memory.nbytes - pages.stored for pages in self._kept)

    def acquire(self, size: int) -> tuple[Pages, npt.NDArray[np.uint8]]:
        """Room for a payload of `size` bytes, and the payload to be: uint8 [size]."""
        capacity = rounded(size)
        for pages in self._kept:
            if pages.memory.nbytes == capacity and pages.is_idle:
                self._kept.remove(pages)
                memory = pages.memory
                break
        else:
            memory = np.empty(capacity, np.uint8)  # costs nothing before it is written to
        payload = memory[:size]
        pages = Pages(memory, weakref.ref(payload))
        self._kept.append(pages)
        return pages, payload

    def limit(self, spare: int) -> None:
        """Keep at most `spare` bytes that store nothing, idle ones least of all."""
        for idle in (True, False):
            for pages in list(self._kept):
                if self.spare <= spare and len(self._kept) <= MAX_KEPT:
                    return
                if pages.is_idle if idle else not pages.stored:
                    self._kept.remove(pages)

    def check_integrity(self) -> None:
        """Raise AssertionError if room that stores a payload could be given to another."""
        for pages in self._kept:
            if not 0 <= pages.stored <= pages.memory.nbytes:
                raise AssertionError("more is stored in pages than they hold")
            if pages.stored and pages.is_idle:
                raise AssertionError("pages store what nobody has")

    def clear(self) -> int:
        """Keep nothing. Returns the bytes that stored nothing."""
        spare = self.spare
        self._kept.clear()
        return spare


def rounded(size: int) -> int:
    """The next of the sizes that memory is kept in, a quarter of a power of two apart."""
    step = 1 << max(0, (size - 1).bit_length() - 3)
    return -(-size // step) * step
