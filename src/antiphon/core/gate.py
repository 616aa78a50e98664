"""What holds a request until its stage input has arrived.

    register ──▶ WAITING ──open──▶ READY ──consume──▶ CONSUMED
                    │ ╲ empty end                │
                    │  ╰──────▶ ENDED            │
                    ╰── fail, expire ──▶ FAILED ◀┴─ fail

A payload that is being fetched keeps its request WAITING. The gate changes states and nothing else:
it never calls a connector. Full edges carry one payload per consumer, so whatever follows it is
dropped; a stream edge will add moves from CONSUMED back to WAITING, with `last_seq` and `epoch`
already in the record.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from antiphon.core.deadlines import Deadlines
from antiphon.core.moves import IllegalMove, move
from antiphon.errors import DuplicateRequestError
from antiphon.payload.ref import Ref

__all__ = [
    "NOTHING_SEEN",
    "TRANSITIONS",
    "Announcement",
    "ExpiredWait",
    "Gate",
    "GateEvent",
    "GateState",
    "GateStatistics",
    "IllegalMove",
]

NOTHING_SEEN = -1  # `last_seq` of a request for which no ref has arrived


class GateState(enum.Enum):
    """Where a request stands with its input."""

    WAITING = "waiting"
    READY = "ready"
    CONSUMED = "consumed"
    ENDED = "ended"
    FAILED = "failed"


class GateEvent(enum.Enum):
    """What can happen to it."""

    ANNOUNCE = "announce"
    END = "end"
    OPEN = "open"
    CONSUME = "consume"
    FAIL = "fail"
    EXPIRE = "expire"


TRANSITIONS = {
    (GateState.WAITING, GateEvent.ANNOUNCE): GateState.WAITING,
    (GateState.WAITING, GateEvent.END): GateState.ENDED,
    (GateState.WAITING, GateEvent.OPEN): GateState.READY,
    (GateState.READY, GateEvent.CONSUME): GateState.CONSUMED,
    (GateState.WAITING, GateEvent.FAIL): GateState.FAILED,
    (GateState.READY, GateEvent.FAIL): GateState.FAILED,
    (GateState.CONSUMED, GateEvent.FAIL): GateState.FAILED,
    (GateState.WAITING, GateEvent.EXPIRE): GateState.FAILED,
}

_SCHEDULABLE = frozenset({GateState.READY, GateState.CONSUMED})


class Announcement(enum.Enum):
    """What to do with a ref."""

    ACCEPTED = "accepted"  # fetch it
    EMPTY_END = "empty_end"  # the producer ended with nothing: finish the request at once
    DUPLICATE = "duplicate"  # seen already: drop the ref, but leave its key, which is being fetched
    LATE = "late"  # nobody waits for it: drop the ref and discard its key


@dataclass(frozen=True, slots=True)
class ExpiredWait:
    """A request whose input did not come in time. `last_seq`: NOTHING_SEEN if no ref arrived."""

    uid: str
    edge: str
    waited_s: float
    last_seq: int


class GateStatistics(msgspec.Struct, frozen=True):
    """What the gate holds now, and how its refs and waits ended since it was made."""

    requests: int
    blocked: int
    idle: int
    accepted: int
    empty_ends: int
    duplicates: int
    late: int
    expired: int


@dataclass(slots=True)
class _Record:
    edge: str
    state: GateState = GateState.WAITING
    fetching: bool = False
    last_seq: int = NOTHING_SEEN
    epoch: int = 0

    @property
    def blocked(self) -> bool:
        return self.state not in _SCHEDULABLE

    @property
    def idle(self) -> bool:
        return self.state is GateState.WAITING and not self.fetching


class Gate:
    """One record per gated request. All operations are O(1) or O(log n). Not thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._records: dict[str, _Record] = {}
        self._deadlines = Deadlines(clock)
        self._blocked = 0
        self._idle = 0
        self._announced: Counter[Announcement] = Counter()
        self._expired = 0

    def register(self, uid: str, edge: str, timeout_s: float) -> None:
        """Hold `uid` until `edge` has delivered.

        `timeout_s` counts from the last progress; 0 waits for ever. Raises DuplicateRequestError if
        the gate knows the uid already, ValueError for an impossible timeout.
        """
        if uid in self._records:
            raise DuplicateRequestError(f"Request {uid} waits for its input already.")
        self._deadlines.start(uid, timeout_s)
        self._records[uid] = _Record(edge)
        self._blocked += 1
        self._idle += 1

    def announce(self, uid: str, ref: Ref) -> Announcement:
        """A ref arrived for the consuming request `uid`; never raises for what a producer sends."""
        answer = self._judge(self._records.get(uid), ref)
        self._announced[answer] += 1
        if answer is Announcement.ACCEPTED:
            self._records[uid].last_seq = ref.seq
            self._move(uid, GateEvent.ANNOUNCE, fetching=True)
            self._deadlines.touch(uid)
        elif answer is Announcement.EMPTY_END:
            self._records[uid].last_seq = ref.seq
            self._move(uid, GateEvent.END)
        return answer

    def open(self, uid: str) -> None:
        """The prompt is planned and local to the worker: the request may be scheduled."""
        self._move(uid, GateEvent.OPEN)

    def consume(self, uid: str) -> None:
        """The request has been scheduled for the first time."""
        self._move(uid, GateEvent.CONSUME)

    def fail(self, uid: str) -> None:
        """The request cannot go on; it stays blocked until it is dropped."""
        self._move(uid, GateEvent.FAIL)

    def expired(self) -> list[ExpiredWait]:
        """The requests whose wait ended without input, each once; they are FAILED from here on."""
        waits = []
        for timer in self._deadlines.expired():
            record = self._records[timer.key]
            waits.append(ExpiredWait(timer.key, record.edge, timer.waited_s, record.last_seq))
            self._move(timer.key, GateEvent.EXPIRE)
        self._expired += len(waits)
        return waits

    def pause(self) -> None:
        """The stage sleeps: no wait grows older until `resume`."""
        self._deadlines.pause()

    def resume(self) -> None:
        """The stage is awake again."""
        self._deadlines.resume()

    def next_due(self) -> float | None:
        """Clock value at which the next wait expires, None if none can."""
        return self._deadlines.next_due()

    def drop(self, uid: str) -> None:
        """Forget a request in any state; unknown ones are ignored."""
        record = self._records.pop(uid, None)
        if record is not None:
            self._blocked -= record.blocked
            self._idle -= record.idle
            self._deadlines.clear(uid)

    def blocked(self, uid: str) -> bool:
        """True while the request must not be scheduled: it waits, or has ended or failed."""
        record = self._records.get(uid)
        return record is not None and record.blocked

    def state(self, uid: str) -> GateState | None:
        """The request's state, None if it is not gated."""
        record = self._records.get(uid)
        return None if record is None else record.state

    @property
    def blocked_count(self) -> int:
        """How many requests are blocked."""
        return self._blocked

    @property
    def idle_count(self) -> int:
        """How many wait with no fetch in flight: these are no unfinished work."""
        return self._idle

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, uid: object) -> bool:
        return uid in self._records

    def statistics(self) -> GateStatistics:
        return GateStatistics(
            requests=len(self._records),
            blocked=self._blocked,
            idle=self._idle,
            accepted=self._announced[Announcement.ACCEPTED],
            empty_ends=self._announced[Announcement.EMPTY_END],
            duplicates=self._announced[Announcement.DUPLICATE],
            late=self._announced[Announcement.LATE],
            expired=self._expired,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError if counters, records and deadlines disagree."""
        records = self._records.values()
        if self._blocked != sum(record.blocked for record in records):
            raise AssertionError("blocked requests are miscounted")
        if self._idle != sum(record.idle for record in records):
            raise AssertionError("idle requests are miscounted")
        self._deadlines.check_integrity()
        if len(self._deadlines) != sum(r.state is GateState.WAITING for r in records):
            raise AssertionError("a deadline runs without a wait")
        for uid, record in self._records.items():
            waits = record.state is GateState.WAITING
            if waits != (uid in self._deadlines):
                raise AssertionError(f"request {uid} waits without a deadline")
            if record.fetching and not waits:
                raise AssertionError(f"request {uid} fetches though it does not wait")

    @staticmethod
    def _judge(record: _Record | None, ref: Ref) -> Announcement:
        if record is None or ref.edge != record.edge or ref.epoch != record.epoch:
            return Announcement.LATE
        if record.state is GateState.FAILED:
            return Announcement.LATE
        if ref.seq <= record.last_seq:
            return Announcement.DUPLICATE
        if not record.idle:  # the one payload of a full edge has come already
            return Announcement.LATE
        # On a full edge a chunk without a payload is the end, marked or not: nothing else comes.
        return Announcement.EMPTY_END if ref.empty else Announcement.ACCEPTED

    def _move(self, uid: str, event: GateEvent, *, fetching: bool = False) -> None:
        """Apply an event; the counters and the deadline follow the state."""
        record = self._records.get(uid)
        if record is None:
            raise IllegalMove(f"Request {uid}: {event.name} is not possible, it is not gated.")
        state = move(TRANSITIONS, record.state, event, f"Request {uid}")
        self._blocked -= record.blocked
        self._idle -= record.idle
        record.state = state
        record.fetching = fetching
        self._blocked += record.blocked
        self._idle += record.idle
        if state is not GateState.WAITING:
            self._deadlines.clear(uid)
