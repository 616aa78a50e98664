"""Cache blocks that are promised before anything is computed: the worst case of every request that
runs fits beside those of all others, so none of them can ever be in want.

Whoever's worst case does not fit waits in line, and holds nothing meanwhile. Only the first of the
line is let in: a small request never overtakes a large one, so nobody starves.
"""

from __future__ import annotations

from bisect import bisect_left, insort

Place = tuple[float, float]  # where a request stands: smaller ones go first


class Reservations:
    """The books of one cache of `total` blocks. Requests by uid. Not thread-safe.

    Lining up and leaving the line move its tail (a `bisect` list); all else is O(1).
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.reserved = 0  # blocks
        self._held: dict[str, int] = {}
        self._line: list[tuple[Place, str]] = []  # the first goes first
        self._waiting: dict[str, tuple[Place, int]] = {}  # those in line, and what they need

    def fits(self, blocks: int) -> bool:
        """Whether a request of this size can be let in at all, once it has the cache to itself."""
        return blocks <= self.total

    def line_up(self, uid: str, blocks: int, place: Place) -> None:
        """Have a request wait for its blocks; ignored if it waits or has them.

        Raises ValueError for a request that never fits.
        """
        if uid in self._held or uid in self._waiting:
            return
        if not self.fits(blocks):
            raise ValueError(f"request {uid} needs {blocks} of {self.total} blocks")
        self._waiting[uid] = (place, blocks)
        insort(self._line, (place, uid))

    @property
    def opens(self) -> bool:
        """Whether the first of the line fits now."""
        if not self._line:
            return False
        _, blocks = self._waiting[self._line[0][1]]
        return self.reserved + blocks <= self.total

    @property
    def first(self) -> str:
        """Whose turn it is. IndexError if nobody waits."""
        return self._line[0][1]

    def let_in(self) -> str:
        """Give the first of the line its blocks, which must fit."""
        if not self.opens:
            raise ValueError("nobody waits, or the first of the line does not fit")
        _, uid = self._line.pop(0)
        _, blocks = self._waiting.pop(uid)
        self._held[uid] = blocks
        self.reserved += blocks
        return uid

    def keep(self, uid: str, blocks: int) -> None:
        """Of what the request has, it needs no more than so many blocks from here on."""
        held = self._held[uid]
        if blocks < held:
            self._held[uid] = blocks
            self.reserved -= held - blocks

    def leave(self, uid: str) -> None:
        """The request is over, or waits no more: what it has is free. Unknown ones are ignored."""
        self.reserved -= self._held.pop(uid, 0)
        if (waits := self._waiting.pop(uid, None)) is not None:
            del self._line[bisect_left(self._line, (waits[0], uid))]

    def of(self, uid: str) -> int | None:
        """The blocks that are promised to the request; None if there are none."""
        return self._held.get(uid)

    def holders(self) -> set[str]:
        """Requests that have been let in."""
        return set(self._held)

    def waiting(self) -> list[str]:
        """Requests in line, in their order."""
        return [uid for _, uid in self._line]

    def check_integrity(self) -> None:
        """Raise AssertionError if the books disagree."""
        if self.reserved != sum(self._held.values()):
            raise AssertionError("reserved blocks are miscounted")
        if self.reserved > self.total:
            raise AssertionError("more blocks are promised than there are")
        if self._held.keys() & self._waiting.keys():
            raise AssertionError("a request waits for what it has")
        if self._line != sorted((place, uid) for uid, (place, _) in self._waiting.items()):
            raise AssertionError("the line and those who wait disagree")
        if any(not self.fits(blocks) for _, blocks in self._waiting.values()):
            raise AssertionError("a request waits for more than there is")
