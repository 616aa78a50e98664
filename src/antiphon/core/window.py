"""A bounded number of streams that a generation stage serves at a time, so that each of them is
served often enough; the others wait their turn, first come, first served.

The window never leaves the stage idle: when no stream in it has a chunk to run, the next one is let
in all the same. So a stream that is slow upstream cannot hold up those that wait.
"""

from __future__ import annotations


class StreamWindow:
    """Streams by uid. `size` 0: no bound. All operations are O(1)."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._active: set[str] = set()
        self._waiting: dict[str, None] = {}  # in the order of their arrival

    def enter(self, uid: str) -> bool:
        """The stream has a chunk to run: whether it may run now. Otherwise it waits."""
        if self._size == 0 or uid in self._active:
            return True
        if len(self._active) < self._size:  # then nobody waits
            self._active.add(uid)
            return True
        self._waiting[uid] = None
        return False

    def leave(self, uid: str) -> str | None:
        """The stream is over, however it ended; the one that may run in its place."""
        self._waiting.pop(uid, None)
        if uid not in self._active:
            return None
        self._active.remove(uid)
        return self.let_in() if len(self._active) < self._size else None

    def let_in(self) -> str | None:
        """The stream that has waited longest, which is in the window from here on."""
        uid = next(iter(self._waiting), None)
        if uid is not None:
            del self._waiting[uid]
            self._active.add(uid)
        return uid

    @property
    def waiting(self) -> int:
        """How many streams wait with a chunk to run."""
        return len(self._waiting)

    def __len__(self) -> int:
        return len(self._active) + len(self._waiting)

    def check_integrity(self) -> None:
        """Raise AssertionError if a stream stands in two places, or waits though there is room."""
        if self._active & self._waiting.keys():
            raise AssertionError("a stream waits though it is in the window")
        if self._waiting and len(self._active) < self._size:
            raise AssertionError("a stream waits though the window has room")
