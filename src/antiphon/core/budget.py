"""What a producing stage has sent on one edge and its consumers have not used up yet.

A request must wait when its own outstanding chunks or bytes reach the request's limits, or when the
edge's totals are reached and it has something outstanding itself. A request with nothing
outstanding never waits. Otherwise there would be a deadlock: the totals are used up by streams that
the consumer does not serve yet (it serves some at a time), and the one that it does serve may not
send its first chunk because of them. So whoever is served gets on: what it has sent is used up,
and then it has nothing outstanding. The argument needs a consumer that uses up a chunk without
waiting for the next one, and stages in a chain: two consumers that seat requests in different
orders could wait for each other. A topology in which one stage feeds two such is refused.

The limits say when to stop, not how far the last step goes: the totals can be exceeded by what each
request sends in one step. A chunk larger than a limit passes and blocks until it is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec


class EdgeLimits(msgspec.Struct, frozen=True):
    """What may be outstanding on one edge. Raises ValueError for a limit that is not positive."""

    request_chunks: int = 64
    """Chunks of one request."""

    request_bytes: int = 16 << 20
    """Bytes of one request's chunks."""

    total_chunks: int = 1024
    """Chunks of all requests."""

    total_bytes: int = 128 << 20
    """Bytes of all requests' chunks."""

    def __post_init__(self) -> None:
        for name, limit in msgspec.structs.asdict(self).items():
            if limit <= 0:
                raise ValueError(f"{name} is {limit}; a limit has to be positive")


class BudgetStatistics(msgspec.Struct, frozen=True):
    """What is outstanding now, and counters since the budget was made."""

    chunks: int
    bytes: int
    peak_chunks: int
    peak_bytes: int
    sent: int  # chunks
    returned: int  # chunks
    dropped: int  # chunks that were forgotten with their requests
    blocked: int  # requests that wait now
    blockings: int  # how often a request had to wait
    blocked_s: float  # that requests have waited, those that wait now included
    capacity_chunks: int  # the limit for all requests
    capacity_bytes: int


@dataclass(slots=True)
class _Record:
    """A request that has chunks outstanding, or waits."""

    chunks: dict[str, int] = field(default_factory=dict)  # key -> bytes
    nbytes: int = 0


class EdgeBudget:
    """The books of one edge. Not thread-safe. `clock` gives seconds.

    All calls are O(what changes): a chunk sent or returned is O(1), however many requests wait;
    `take_released` sorts the requests that it gives, and looks at no others.
    """

    def __init__(self, limits: EdgeLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._records: dict[str, _Record] = {}
        self._owners: dict[str, str] = {}  # key -> uid
        self._nbytes = 0
        self._waits: dict[str, int] = {}  # uid -> number of its wait, which is its place
        # Those that wait and are below their own limits: with nothing outstanding, with something.
        self._free: set[str] = set()
        self._for_totals: set[str] = set()
        self._peak_chunks = 0
        self._peak_bytes = 0
        self._sent = 0
        self._returned = 0
        self._dropped = 0
        self._blockings = 0
        # Ends of waits less beginnings: with the clock once for each that has not ended, their sum.
        self._ends_less_beginnings_s = 0.0

    def sent(self, uid: str, key: str, nbytes: int) -> None:
        """A chunk of `uid` is stored under `key`.

        It counts until it is returned, also when the request has been closed or dropped meanwhile.
        Raises AssertionError if the key is outstanding already.
        """
        if key in self._owners:
            raise AssertionError(f"chunk {key} has been sent twice")
        record = self._records.setdefault(uid, _Record())
        record.chunks[key] = nbytes
        record.nbytes += nbytes
        self._owners[key] = uid
        self._nbytes += nbytes
        self._sent += 1
        self._peak_chunks = max(self._peak_chunks, len(self._owners))
        self._peak_bytes = max(self._peak_bytes, self._nbytes)
        self._file(uid, record)

    def returned(self, keys: Iterable[str]) -> None:
        """These chunks have been used up, discarded or lost; unknown ones are ignored."""
        for key in keys:
            uid = self._owners.pop(key, None)
            if uid is None:
                continue
            record = self._records[uid]
            nbytes = record.chunks.pop(key)
            record.nbytes -= nbytes
            self._nbytes -= nbytes
            self._returned += 1
            self._file(uid, record)

    def drop(self, uid: str) -> list[str]:
        """Forget a request; the keys of what it has outstanding. Unknown ones have none."""
        record = self._records.pop(uid, None)
        if record is None:
            return []
        for key in record.chunks:
            del self._owners[key]
        self._nbytes -= record.nbytes
        self._dropped += len(record.chunks)
        self._stop_waiting(uid)
        return list(record.chunks)

    def close(self, uid: str) -> None:
        """The producer has ended and waits no more; its outstanding chunks count until returned.

        Do not ask `blocked` for it afterwards: that would begin a new wait. Unknown: ignored.
        """
        record = self._records.get(uid)
        if record is not None:
            self._stop_waiting(uid)
            self._file(uid, record)

    def blocked(self, uid: str) -> bool:
        """Whether `uid` must not produce more for now; if so, `take_released` tells when it may.

        Who asks again while it waits keeps its place; who is told that it may go on waits no more.
        """
        record = self._records.get(uid)
        if record is None:
            return False
        blocked = self._reached(record) or (bool(record.chunks) and self._totals_reached)
        if not blocked:
            self._stop_waiting(uid)
        elif uid not in self._waits:
            self._blockings += 1
            self._waits[uid] = self._blockings
            self._ends_less_beginnings_s -= self._clock()
        self._file(uid, record)
        return blocked

    def take_released(self) -> list[str]:
        """The requests that waited and may go on now, longest waiting first; each is given once."""
        released = set(self._free) if self._totals_reached else self._free | self._for_totals
        uids = sorted(released, key=self._waits.__getitem__)
        for uid in uids:
            self._stop_waiting(uid)
            self._file(uid, self._records[uid])
        return uids

    def __len__(self) -> int:
        """How many requests have something outstanding or wait."""
        return len(self._records)

    def statistics(self) -> BudgetStatistics:
        waiting_s = len(self._waits) * self._clock()
        return BudgetStatistics(
            chunks=len(self._owners),
            bytes=self._nbytes,
            peak_chunks=self._peak_chunks,
            peak_bytes=self._peak_bytes,
            sent=self._sent,
            returned=self._returned,
            dropped=self._dropped,
            blocked=len(self._waits),
            blockings=self._blockings,
            blocked_s=self._ends_less_beginnings_s + waiting_s,
            capacity_chunks=self._limits.total_chunks,
            capacity_bytes=self._limits.total_bytes,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError if records, totals and waits disagree."""
        owners = {key: uid for uid, record in self._records.items() for key in record.chunks}
        if owners != self._owners:
            raise AssertionError("keys and requests disagree")
        for uid, record in self._records.items():
            if record.nbytes != sum(record.chunks.values()):
                raise AssertionError(f"the bytes of request {uid} are miscounted")
            if not record.chunks and uid not in self._waits:
                raise AssertionError(f"request {uid} is kept for nothing")
        if self._nbytes != sum(record.nbytes for record in self._records.values()):
            raise AssertionError("the edge's bytes are miscounted")
        if len(self._owners) != self._sent - self._returned - self._dropped:
            raise AssertionError("the edge's chunks are miscounted")
        waiting = {uid: self._records[uid] for uid in self._waits}
        if self._free != {uid for uid, r in waiting.items() if not r.chunks}:
            raise AssertionError("requests with nothing outstanding are filed wrongly")
        below = {uid for uid, r in waiting.items() if r.chunks and not self._reached(r)}
        if self._for_totals != below:
            raise AssertionError("requests that wait for the totals are filed wrongly")

    @property
    def _totals_reached(self) -> bool:
        limits = self._limits
        return len(self._owners) >= limits.total_chunks or self._nbytes >= limits.total_bytes

    def _reached(self, record: _Record) -> bool:
        """Whether a request has reached its own limits."""
        limits = self._limits
        return len(record.chunks) >= limits.request_chunks or record.nbytes >= limits.request_bytes

    def _stop_waiting(self, uid: str) -> None:
        if self._waits.pop(uid, None) is not None:
            self._ends_less_beginnings_s += self._clock()
        self._free.discard(uid)
        self._for_totals.discard(uid)

    def _file(self, uid: str, record: _Record) -> None:
        """Put a request that has changed where it belongs now, which may be nowhere."""
        self._free.discard(uid)
        self._for_totals.discard(uid)
        if uid not in self._waits:
            if not record.chunks:
                del self._records[uid]
        elif not record.chunks:
            self._free.add(uid)
        elif not self._reached(record):
            self._for_totals.add(uid)
