"""What holds a request until its stage input has arrived.

    register ──▶ WAITING ──open──▶ READY ──consume──▶ CONSUMED ──end──▶ ENDED
                  │  ▲ ╲             ▲                 │   │              ▲
                  │  │  ╲            ╰────── open ─────╯   │              │
                  │  ╰───╲───────────── starve ────────────╯              │
                  │       ╰────────────────── end ────────────────────────╯
                  ╰── expire ──▶ FAILED

One mechanism for both kinds of edges: a full edge carries one chunk, which is its end. On a stream
edge a request comes back to WAITING whenever its next step needs what is not there. A payload that
is being fetched keeps its request WAITING. The gate changes states and nothing else: it never calls
a connector.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from antiphon.core.chunks import ChunkOrder, Verdict
from antiphon.core.deadlines import Deadlines
from antiphon.core.moves import IllegalMove, move
from antiphon.errors import DuplicateRequestError
from antiphon.payload.ref import Ref

__all__ = [
    "NOTHING_SEEN",
    "TRANSITIONS",
    "Announced",
    "Announcement",
    "ExpiredWait",
    "Gate",
    "GateEvent",
    "GateState",
    "GateStatistics",
    "IllegalMove",
]

NOTHING_SEEN = -1  # `last_seq` of a request of which no chunk has come in order


class GateState(enum.Enum):
    """Where a request stands with its input."""

    WAITING = "waiting"  # for what its next step needs
    READY = "ready"  # it is there
    CONSUMED = "consumed"  # a step has been scheduled with it
    ENDED = "ended"  # the input is complete and used: nothing is waited for any more
    FAILED = "failed"  # it has waited too long


class GateEvent(enum.Enum):
    """What can happen to it."""

    ANNOUNCE = "announce"
    OPEN = "open"
    CONSUME = "consume"
    STARVE = "starve"
    END = "end"
    EXPIRE = "expire"


_S, _E = GateState, GateEvent
TRANSITIONS = {
    (_S.WAITING, _E.ANNOUNCE): _S.WAITING,
    (_S.WAITING, _E.OPEN): _S.READY,
    (_S.WAITING, _E.END): _S.ENDED,
    (_S.WAITING, _E.EXPIRE): _S.FAILED,
    (_S.READY, _E.ANNOUNCE): _S.READY,
    (_S.READY, _E.CONSUME): _S.CONSUMED,
    (_S.CONSUMED, _E.ANNOUNCE): _S.CONSUMED,
    (_S.CONSUMED, _E.OPEN): _S.READY,
    (_S.CONSUMED, _E.STARVE): _S.WAITING,
    (_S.CONSUMED, _E.END): _S.ENDED,
}


class Announcement(enum.Enum):
    """What became of a ref."""

    ACCEPTED = "accepted"  # `Announced.fetch` says what to fetch now
    EMPTY_END = "empty_end"  # the producer ended with nothing at all: finish the request at once
    DUPLICATE = "duplicate"  # seen already: drop the ref, but leave its key, which is in use
    LATE = "late"  # nobody waits for it: drop the ref and discard its key


@dataclass(frozen=True, slots=True)
class Announced:
    """The answer to a ref: what became of it, and the refs whose turn has come, in order.

    `discard` are refs that turned out to lie behind the stream's end.
    """

    kind: Announcement
    fetch: tuple[Ref, ...] = ()
    discard: tuple[Ref, ...] = ()


@dataclass(frozen=True, slots=True)
class ExpiredWait:
    """A request whose input did not come in time. `last_seq`: NOTHING_SEEN if no chunk came."""

    uid: str
    edge: str
    waited_s: float
    last_seq: int


class GateStatistics(msgspec.Struct, frozen=True):
    """What the gate holds now, and how its refs and waits ended since it was made."""

    requests: int
    blocked: int
    accepted: int
    empty_ends: int
    duplicates: int
    late: int
    starved: int
    expired: int


@dataclass(slots=True)
class _Record:
    edge: str
    stream: bool
    epoch: int
    timeout_s: float
    state: GateState = GateState.WAITING
    opened: bool = False  # the request has been open once: its prompt is known
    order: ChunkOrder = field(default_factory=ChunkOrder)

    @property
    def blocked(self) -> bool:
        match self.state:
            case GateState.READY | GateState.CONSUMED:
                return False
            case GateState.ENDED:
                return not self.opened
        return True


class Gate:
    """One record per gated request. All operations are O(1) or O(log n). Not thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._records: dict[str, _Record] = {}
        self._deadlines = Deadlines(clock)
        self._blocked = 0
        self._announced: Counter[Announcement] = Counter()
        self._starved = 0
        self._expired = 0

    def register(
        self, uid: str, edge: str, timeout_s: float, *, stream: bool = False, epoch: int = 0
    ) -> None:
        """Hold `uid` until `edge` has delivered.

        `timeout_s` counts from the last progress; 0 waits for ever. Refs of another epoch are late.
        Raises DuplicateRequestError if the gate knows the uid already, ValueError for an impossible
        timeout.
        """
        if uid in self._records:
            raise DuplicateRequestError(f"Request {uid} waits for its input already.")
        self._deadlines.start(uid, timeout_s)
        self._records[uid] = _Record(edge, stream, epoch, timeout_s)
        self._blocked += 1

    def announce(self, uid: str, ref: Ref) -> Announced:
        """A ref arrived for the consuming request `uid`.

        Raises PayloadError when too many chunks wait for one that is missing.
        """
        answer = self._judge(self._records.get(uid), ref)
        self._announced[answer.kind] += 1
        self._announced[Announcement.LATE] += len(answer.discard)
        if answer.kind is Announcement.EMPTY_END:
            self._move(uid, GateEvent.END)
        elif answer.kind is Announcement.ACCEPTED:
            self._move(uid, GateEvent.ANNOUNCE)
            if answer.fetch and uid in self._deadlines:  # a chunk behind a gap is no progress
                self._deadlines.touch(uid)
        return answer

    def open(self, uid: str) -> None:
        """What the next step needs is local to the worker: the request may be scheduled."""
        self._move(uid, GateEvent.OPEN)

    def consume(self, uid: str) -> None:
        """A step has been scheduled with what was there; ignored unless the request is READY."""
        if self.state(uid) is GateState.READY:
            self._move(uid, GateEvent.CONSUME)

    def starve(self, uid: str) -> None:
        """The next step needs what is not there yet; the deadline runs again."""
        self._move(uid, GateEvent.STARVE)
        self._starved += 1

    def end(self, uid: str) -> None:
        """The input is complete and all of it has been used."""
        self._move(uid, GateEvent.END)

    def expired(self) -> list[ExpiredWait]:
        """The requests whose wait ended without input, each once; they are FAILED from here on."""
        waits = []
        for timer in self._deadlines.expired():
            record = self._records[timer.key]
            last = record.order.next_seq - 1
            waits.append(ExpiredWait(timer.key, record.edge, timer.waited_s, last))
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

    def drop(self, uid: str) -> list[Ref]:
        """Forget a request in any state; gives the refs that wait behind a gap. Unknown: none."""
        record = self._records.pop(uid, None)
        if record is None:
            return []
        self._blocked -= record.blocked
        self._deadlines.clear(uid)
        return list(record.order.ahead.values())

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

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, uid: object) -> bool:
        return uid in self._records

    def statistics(self) -> GateStatistics:
        return GateStatistics(
            requests=len(self._records),
            blocked=self._blocked,
            accepted=self._announced[Announcement.ACCEPTED],
            empty_ends=self._announced[Announcement.EMPTY_END],
            duplicates=self._announced[Announcement.DUPLICATE],
            late=self._announced[Announcement.LATE],
            starved=self._starved,
            expired=self._expired,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError if counters, records and deadlines disagree."""
        if self._blocked != sum(record.blocked for record in self._records.values()):
            raise AssertionError("blocked requests are miscounted")
        self._deadlines.check_integrity()
        waiting = {u for u, r in self._records.items() if r.state is GateState.WAITING}
        if len(self._deadlines) != len(waiting):
            raise AssertionError("deadlines and waits differ in number")
        if lost := [uid for uid in waiting if uid not in self._deadlines]:
            raise AssertionError(f"request {lost[0]} waits without a deadline")
        for record in self._records.values():
            record.order.check_integrity()

    @staticmethod
    def _judge(record: _Record | None, ref: Ref) -> Announced:
        late = Announced(Announcement.LATE)
        if record is None or ref.edge != record.edge or ref.epoch != record.epoch:
            return late
        if record.state in (GateState.FAILED, GateState.ENDED):
            return late
        if not record.stream:
            ref = msgspec.structs.replace(ref, end=True)  # marked or not: nothing else comes
        match record.order.offer(ref):
            case Verdict.LATE:
                return late
            case Verdict.DUPLICATE:
                return Announced(Announcement.DUPLICATE)
        beyond = tuple(record.order.beyond_end()) if ref.end else ()
        taken = tuple(record.order.take())
        if ref.empty and ref.end and ref.seq == 0:
            return Announced(Announcement.EMPTY_END, discard=beyond)
        return Announced(Announcement.ACCEPTED, taken, beyond)

    def _move(self, uid: str, event: GateEvent) -> None:
        """Apply an event; the counters and the deadline follow the state."""
        record = self._records.get(uid)
        if record is None:
            raise IllegalMove(f"Request {uid}: {event.name} is not possible, it is not gated.")
        before = record.state
        state = move(TRANSITIONS, before, event, f"Request {uid}")
        self._blocked -= record.blocked
        record.state = state
        record.opened |= state is GateState.READY
        self._blocked += record.blocked
        if before is GateState.WAITING and state is not GateState.WAITING:
            self._deadlines.clear(uid)
        elif state is GateState.WAITING and before is not GateState.WAITING:
            self._deadlines.start(uid, record.timeout_s)
