"""The gate against a model, over any order of calls and refs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pytest
from core_refs import EDGE, chunk, end_mark
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from antiphon.core.gate import (
    Announced,
    Announcement,
    ExpiredWait,
    Gate,
    GateState,
    GateStatistics,
    IllegalMove,
)
from antiphon.errors import DuplicateRequestError
from antiphon.payload.ref import Ref
from antiphon.testing.clock import ManualClock

UIDS = ["a", "b"]
OVER = {GateState.ENDED, GateState.FAILED}


@dataclass
class Model:
    """One request, written down the long way: all refs that were accepted, and the longest run."""

    stream: bool
    epoch: int
    timeout: float
    since: float
    state: GateState = GateState.WAITING
    opened: bool = False
    refs: dict[int, Ref] = field(default_factory=dict)
    handed: int = 0

    @property
    def blocked(self) -> bool:
        if self.state is GateState.ENDED:
            return not self.opened
        return self.state in (GateState.WAITING, GateState.FAILED)

    @property
    def due(self) -> float | None:
        waits = self.state is GateState.WAITING and self.timeout
        return self.since + self.timeout if waits else None

    @property
    def end(self) -> int | None:
        return min((seq for seq, ref in self.refs.items() if ref.end), default=None)

    @property
    def behind_gap(self) -> set[Ref]:
        return {ref for seq, ref in self.refs.items() if seq >= self.handed}

    def announce(self, ref: Ref) -> Announced:
        late = self.end is not None and ref.seq > self.end
        if ref.edge != EDGE or ref.epoch != self.epoch or self.state in OVER or late:
            return Announced(Announcement.LATE)
        if ref.seq in self.refs:
            return Announced(Announcement.DUPLICATE)
        self.refs[ref.seq] = ref if self.stream else msgspec.structs.replace(ref, end=True)
        beyond = {seq for seq in self.refs if self.end is not None and seq > self.end}
        discard = tuple(self.refs.pop(seq) for seq in sorted(beyond))
        first = self.handed
        while self.handed in self.refs:
            self.handed += 1
        if ref.seq == 0 and ref.key is None:
            return Announced(Announcement.EMPTY_END, discard=discard)
        fetch = tuple(self.refs[seq] for seq in range(first, self.handed))
        return Announced(Announcement.ACCEPTED, fetch, discard)


class GateMachine(RuleBasedStateMachine):
    """Any order of calls, refs of any kind, an injected clock that may be stopped."""

    uids = st.sampled_from(UIDS)
    timeouts = st.sampled_from([0.0, 1.0, 5.0, 600.0])

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(start=3.0)
        self.gate = Gate(self.clock)
        self.model: dict[str, Model] = {}
        self.now = 0.0  # the time that counts
        self.paused = False
        self.epoch = 0
        self.counts: Counter[str] = Counter()

    # --- requests -----------------------------------------------------------------------------

    @initialize(timeout=timeouts)
    def begin(self, timeout: float) -> None:
        for uid in UIDS:
            self._register(uid, timeout, stream=True)

    @rule(uid=uids, timeout=timeouts, stream=st.sampled_from([True, True, False]))
    def register(self, uid: str, timeout: float, stream: bool) -> None:
        if uid in self.model:
            with pytest.raises(DuplicateRequestError):
                self.gate.register(uid, EDGE, timeout)
            return
        self._register(uid, timeout, stream)

    @rule(uid=uids, timeout=timeouts)
    def replace(self, uid: str, timeout: float) -> None:
        """The uid starts afresh, so that few steps meet a request that is over."""
        self.drop(uid)
        self._register(uid, timeout, stream=True)

    def _register(self, uid: str, timeout: float, stream: bool) -> None:
        self.epoch += 1
        self.gate.register(uid, EDGE, timeout, stream=stream, epoch=self.epoch)
        self.model[uid] = Model(stream, self.epoch, timeout, self.now)

    @rule(uid=uids)
    def drop(self, uid: str) -> None:
        record = self.model.pop(uid, None)
        left = self.gate.drop(uid)
        assert len(left) == len(set(left))
        assert set(left) == (set() if record is None else record.behind_gap)

    # --- refs ---------------------------------------------------------------------------------

    @rule(uid=uids, ahead=st.integers(-1, 2), end=st.sampled_from([False, False, False, True]))
    def announce(self, uid: str, ahead: int, end: bool) -> None:
        """A chunk near the one whose turn it is: a repeat, that one, or one behind a gap."""
        handed, epoch = self._next(uid)
        self._announce(uid, chunk(max(0, handed + ahead), end=end, epoch=epoch))

    @rule(uid=uids, ahead=st.integers(0, 2))
    def announce_end(self, uid: str, ahead: int) -> None:
        handed, epoch = self._next(uid)
        self._announce(uid, end_mark(handed + ahead, epoch=epoch))

    @rule(uid=uids, other_edge=st.booleans(), epochs=st.sampled_from([-1, 1]))
    def announce_what_belongs_elsewhere(self, uid: str, other_edge: bool, epochs: int) -> None:
        handed, epoch = self._next(uid)
        fits_else = chunk(handed, edge="other", epoch=epoch)
        self._announce(uid, fits_else if other_edge else chunk(handed, epoch=epoch + epochs))

    def _next(self, uid: str) -> tuple[int, int]:
        """The chunk whose turn it is, and its epoch."""
        record = self.model.get(uid)
        return (0, 0) if record is None else (record.handed, record.epoch)

    def _announce(self, uid: str, ref: Ref) -> None:
        record = self.model.get(uid)
        expected = Announced(Announcement.LATE) if record is None else record.announce(ref)
        answer = self.gate.announce(uid, ref)
        assert answer.kind is expected.kind
        assert answer.fetch == expected.fetch
        assert set(answer.discard) == set(expected.discard)
        self.counts[expected.kind.value] += 1
        self.counts["late"] += len(expected.discard)
        if record is None:
            return
        if expected.kind is Announcement.EMPTY_END:
            record.state = GateState.ENDED
        elif expected.fetch:
            record.since = self.now

    # --- moves --------------------------------------------------------------------------------

    @rule(uid=uids, steps=st.integers(1, 4))
    def go_on(self, uid: str, steps: int) -> None:
        """The next steps of a request that is given what it needs, chunk by chunk."""
        for _ in range(steps):
            record = self.model.get(uid)
            match None if record is None else record.state:
                case GateState.WAITING:
                    self.announce(uid, 0, end=False)
                    self.open(uid)
                case GateState.READY:
                    self.consume(uid)
                case GateState.CONSUMED:
                    self.starve(uid)

    @rule(uid=uids)
    def open(self, uid: str) -> None:
        """Only a request of which something has come is ever opened."""
        record = self.model.get(uid)
        if record is None or record.handed or record.state is not GateState.WAITING:
            from_ = {GateState.WAITING, GateState.CONSUMED}
            self._try(uid, self.gate.open, from_, GateState.READY)

    @rule(uid=uids)
    def consume(self, uid: str) -> None:
        self.gate.consume(uid)
        record = self.model.get(uid)
        if record is not None and record.state is GateState.READY:
            record.state = GateState.CONSUMED

    @rule(uid=uids)
    def starve(self, uid: str) -> None:
        if self._try(uid, self.gate.starve, {GateState.CONSUMED}, GateState.WAITING):
            self.model[uid].since = self.now
            self.counts["starved"] += 1

    @rule(uid=uids)
    def end(self, uid: str) -> None:
        self._try(uid, self.gate.end, {GateState.WAITING, GateState.CONSUMED}, GateState.ENDED)

    def _try(
        self, uid: str, call: Callable[[str], None], allowed: set[GateState], after: GateState
    ) -> bool:
        record = self.model.get(uid)
        if record is None or record.state not in allowed:
            with pytest.raises(IllegalMove):
                call(uid)
            return False
        call(uid)
        record.state = after
        record.opened |= after is GateState.READY
        return True

    # --- time ---------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 4.0, 700.0]))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.now += 0.0 if self.paused else seconds

    @rule(paused=st.booleans())
    def pause_or_resume(self, paused: bool) -> None:
        (self.gate.pause if paused else self.gate.resume)()
        self.paused = paused

    @rule()
    def expire(self) -> None:
        due = {
            uid: ExpiredWait(uid, EDGE, self.now - record.since, record.handed - 1)
            for uid, record in self.model.items()
            if record.due is not None and record.due <= self.now
        }
        found = self.gate.expired()
        assert {wait.uid: wait for wait in found} == due
        assert len(found) == len(due)
        self.counts["expired"] += len(due)
        for uid in due:
            self.model[uid].state = GateState.FAILED

    # --- checks -------------------------------------------------------------------------------

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.gate.check_integrity()
        for uid in UIDS:
            record = self.model.get(uid)
            assert (uid in self.gate) == (record is not None)
            assert self.gate.state(uid) is (None if record is None else record.state)
            assert self.gate.blocked(uid) == (record is not None and record.blocked)
        dues = [record.due for record in self.model.values() if record.due is not None]
        earliest = min(dues) - self.now + self.clock() if dues and not self.paused else None
        assert self.gate.next_due() == earliest

    @invariant()
    def counts_agree(self) -> None:
        blocked = sum(record.blocked for record in self.model.values())
        assert self.gate.blocked_count == blocked
        assert self.gate.statistics() == GateStatistics(
            requests=len(self.model),
            blocked=blocked,
            accepted=self.counts["accepted"],
            empty_ends=self.counts["empty_end"],
            duplicates=self.counts["duplicate"],
            late=self.counts["late"],
            starved=self.counts["starved"],
            expired=self.counts["expired"],
        )


TestGateMachine = GateMachine.TestCase
TestGateMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
