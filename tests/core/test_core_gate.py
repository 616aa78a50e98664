"""The gate: what holds a request until its stage input has arrived."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from antiphon.core.gate import (
    NOTHING_SEEN,
    TRANSITIONS,
    Announcement,
    ExpiredWait,
    Gate,
    GateEvent,
    GateState,
    IllegalMove,
)
from antiphon.core.moves import move
from antiphon.errors import DuplicateRequestError
from antiphon.payload.ref import Ref
from antiphon.testing.clock import ManualClock

EDGE = "text"


def full(seq: int = 0, edge: str = EDGE, epoch: int = 0) -> Ref:
    return Ref(uid="producer", edge=edge, seq=seq, end=True, key=f"key-{seq}", epoch=epoch)


def empty_end(seq: int = 0) -> Ref:
    return Ref(uid="producer", edge=EDGE, seq=seq, end=True)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(start=50.0)


@pytest.fixture
def gate(clock: ManualClock) -> Gate:
    return Gate(clock)


# --- the way through --------------------------------------------------------------------------


def test_a_request_waits_until_its_prompt_is_planned(gate: Gate) -> None:
    gate.register("r", EDGE, 600)
    assert gate.blocked("r")
    assert gate.announce("r", full()) is Announcement.ACCEPTED
    assert gate.blocked("r")
    gate.open("r")
    assert not gate.blocked("r")
    gate.consume("r")
    assert gate.state("r") is GateState.CONSUMED
    gate.check_integrity()


def test_ungated_requests_are_not_blocked(gate: Gate) -> None:
    assert not gate.blocked("unknown")
    assert gate.state("unknown") is None


def test_a_fetch_in_flight_is_work_and_a_bare_wait_is_not(gate: Gate) -> None:
    gate.register("a", EDGE, 600)
    gate.register("b", EDGE, 600)
    assert (gate.blocked_count, gate.idle_count) == (2, 2)
    gate.announce("a", full())
    assert (gate.blocked_count, gate.idle_count) == (2, 1)
    gate.open("a")
    assert (gate.blocked_count, gate.idle_count) == (1, 1)


def test_an_empty_end_finishes_at_once(gate: Gate) -> None:
    """C115: a producer that ends with nothing is not silence."""
    gate.register("r", EDGE, 600)
    assert gate.announce("r", empty_end()) is Announcement.EMPTY_END
    assert gate.state("r") is GateState.ENDED
    assert gate.blocked("r")  # never to be scheduled with its placeholder
    assert gate.idle_count == 0  # finishing it is work
    assert gate.next_due() is None


def test_an_unmarked_empty_chunk_of_a_full_edge_is_its_end(gate: Gate) -> None:
    gate.register("r", EDGE, 600)
    ref = Ref(uid="producer", edge=EDGE, seq=0, end=False)
    assert gate.announce("r", ref) is Announcement.EMPTY_END


def test_a_live_uid_cannot_be_registered_again(gate: Gate) -> None:
    """C87."""
    gate.register("r", EDGE, 600)
    gate.open("r")
    with pytest.raises(DuplicateRequestError, match="r"):
        gate.register("r", EDGE, 600)
    assert gate.state("r") is GateState.READY


def test_a_dropped_uid_starts_afresh(gate: Gate) -> None:
    """C87: after its end, the same id has no memory of what it saw."""
    gate.register("r", EDGE, 600)
    gate.announce("r", full(seq=7))
    gate.drop("r")
    gate.register("r", EDGE, 600)
    assert gate.announce("r", full(seq=0)) is Announcement.ACCEPTED


# --- refs that come too often, too late or to the wrong place -----------------------------------


def test_a_repeated_ref_is_dropped_while_its_payload_is_fetched(gate: Gate) -> None:
    gate.register("r", EDGE, 600)
    gate.announce("r", full())
    assert gate.announce("r", full()) is Announcement.DUPLICATE
    assert gate.idle_count == 0


def test_a_part_of_a_split_edge_may_carry_any_seq(gate: Gate) -> None:
    gate.register("r", EDGE, 600)
    assert gate.announce("r", full(seq=3)) is Announcement.ACCEPTED


def test_a_second_payload_of_a_full_edge_is_late(gate: Gate) -> None:
    gate.register("r", EDGE, 600)
    gate.announce("r", full(seq=0))
    assert gate.announce("r", full(seq=1)) is Announcement.LATE


def test_an_end_mark_after_the_payload_changes_nothing(gate: Gate) -> None:
    gate.register("r", EDGE, 600)
    gate.announce("r", full(seq=0))
    assert gate.announce("r", empty_end(seq=1)) is Announcement.LATE
    gate.open("r")
    assert gate.announce("r", empty_end(seq=1)) is Announcement.LATE
    assert gate.state("r") is GateState.READY


@pytest.mark.parametrize(
    "ref", [full(edge="other"), full(epoch=-1), full(epoch=1)], ids=["edge", "older", "newer"]
)
def test_refs_of_another_edge_or_epoch_are_late(gate: Gate, ref: Ref) -> None:
    gate.register("r", EDGE, 600)
    assert gate.announce("r", ref) is Announcement.LATE
    assert gate.idle_count == 1


def test_refs_for_the_unknown_and_the_failed_are_late_and_counted(gate: Gate) -> None:
    """C66: counted, never raised."""
    assert gate.announce("unknown", full()) is Announcement.LATE
    gate.register("r", EDGE, 600)
    gate.fail("r")
    assert gate.announce("r", full()) is Announcement.LATE
    assert gate.statistics().late == 2


def test_a_repeated_ref_of_a_failed_request_is_late(gate: Gate) -> None:
    """Its key must be discarded: nobody fetches it any more."""
    gate.register("r", EDGE, 600)
    gate.announce("r", full())
    gate.fail("r")
    assert gate.announce("r", full()) is Announcement.LATE


# --- deadlines --------------------------------------------------------------------------------


def test_an_expired_wait_names_edge_time_and_last_seq(gate: Gate, clock: ManualClock) -> None:
    """C12."""
    gate.register("r", EDGE, 5)
    assert gate.next_due() == 55.0
    clock.advance(6)
    assert gate.expired() == [ExpiredWait("r", EDGE, 6.0, NOTHING_SEEN)]
    assert gate.state("r") is GateState.FAILED
    assert gate.expired() == []
    assert (gate.blocked_count, gate.idle_count) == (1, 0)


def test_an_announced_payload_is_progress(gate: Gate, clock: ManualClock) -> None:
    gate.register("r", EDGE, 5)
    clock.advance(4)
    gate.announce("r", full(seq=2))
    clock.advance(4)
    assert gate.expired() == []
    clock.advance(1)
    assert gate.expired() == [ExpiredWait("r", EDGE, 5.0, 2)]


def test_a_repeated_ref_is_no_progress(gate: Gate, clock: ManualClock) -> None:
    gate.register("r", EDGE, 5)
    gate.announce("r", full())
    clock.advance(4)
    gate.announce("r", full())
    clock.advance(1)
    assert [wait.uid for wait in gate.expired()] == ["r"]


def test_an_open_gate_has_no_deadline(gate: Gate, clock: ManualClock) -> None:
    gate.register("r", EDGE, 5)
    gate.open("r")
    clock.advance(100)
    assert gate.expired() == []
    assert gate.next_due() is None


def test_one_expiry_leaves_the_others_waiting(gate: Gate, clock: ManualClock) -> None:
    gate.register("short", EDGE, 5)
    gate.register("long", EDGE, 500)
    gate.register("forever", EDGE, 0)
    clock.advance(10)
    assert [wait.uid for wait in gate.expired()] == ["short"]
    assert gate.idle_count == 2


# --- dropping ---------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [None, *GateState])
def test_a_request_can_be_dropped_in_every_state(
    gate: Gate, clock: ManualClock, state: GateState | None
) -> None:
    """C1, C2: after it nothing is left, wherever the request was."""
    if state is not None:
        _bring_to(gate, "r", state)
    gate.drop("r")
    assert len(gate) == 0
    assert "r" not in gate
    assert (gate.blocked_count, gate.idle_count, gate.next_due()) == (0, 0, None)
    gate.check_integrity()


def _bring_to(gate: Gate, uid: str, state: GateState) -> None:
    gate.register(uid, EDGE, 600)
    if state is GateState.ENDED:
        gate.announce(uid, empty_end())
    elif state is GateState.FAILED:
        gate.fail(uid)
    elif state is not GateState.WAITING:
        gate.open(uid)
        if state is GateState.CONSUMED:
            gate.consume(uid)
    assert gate.state(uid) is state


# --- every move -------------------------------------------------------------------------------

LEGAL = {
    "open": {GateState.WAITING: GateState.READY},
    "consume": {GateState.READY: GateState.CONSUMED},
    "fail": {
        GateState.WAITING: GateState.FAILED,
        GateState.READY: GateState.FAILED,
        GateState.CONSUMED: GateState.FAILED,
    },
}


@pytest.mark.parametrize(
    ("state", "method"),
    list(itertools.product(GateState, LEGAL)),
    ids=lambda v: getattr(v, "name", v),
)
def test_every_state_and_call(gate: Gate, state: GateState, method: str) -> None:
    _bring_to(gate, "r", state)
    call = {"open": gate.open, "consume": gate.consume, "fail": gate.fail}[method]
    if state in LEGAL[method]:
        call("r")
        assert gate.state("r") is LEGAL[method][state]
    else:
        with pytest.raises(IllegalMove, match=state.name):
            call("r")
        assert gate.state("r") is state
    gate.check_integrity()


@pytest.mark.parametrize("state", GateState)
@pytest.mark.parametrize("event", GateEvent)
def test_every_state_and_event_of_the_table(state: GateState, event: GateEvent) -> None:
    leaves = {
        GateState.WAITING: set(GateEvent) - {GateEvent.CONSUME},
        GateState.READY: {GateEvent.CONSUME, GateEvent.FAIL},
        GateState.CONSUMED: {GateEvent.FAIL},
        GateState.ENDED: set(),
        GateState.FAILED: set(),
    }
    if event in leaves[state]:
        assert isinstance(move(TRANSITIONS, state, event, "r"), GateState)
    else:
        with pytest.raises(IllegalMove, match=f"r: {event.name} .* {state.name}"):
            move(TRANSITIONS, state, event, "r")


@pytest.mark.parametrize("method", ["open", "consume", "fail"])
def test_moving_an_unknown_request_is_illegal(gate: Gate, method: str) -> None:
    call = {"open": gate.open, "consume": gate.consume, "fail": gate.fail}[method]
    with pytest.raises(IllegalMove, match="not gated"):
        call("unknown")


# --- against a model --------------------------------------------------------------------------


class Model:
    """One request, written down the long way."""

    def __init__(self, now: float, timeout: float) -> None:
        self.state = GateState.WAITING
        self.fetching = False
        self.seen = NOTHING_SEEN
        self.since = now
        self.timeout = timeout

    def waits(self) -> bool:
        return self.state is GateState.WAITING

    def due(self) -> float | None:
        return self.since + self.timeout if self.waits() and self.timeout else None


class GateMachine(RuleBasedStateMachine):
    """Any order of calls, refs of any kind, an injected clock."""

    uids = st.sampled_from(["a", "b", "c", "d"])

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(start=3.0)
        self.gate = Gate(self.clock)
        self.model: dict[str, Model] = {}

    @rule(uid=uids, timeout=st.sampled_from([0.0, 1.0, 5.0, 600.0]))
    def register(self, uid: str, timeout: float) -> None:
        if uid in self.model:
            with pytest.raises(DuplicateRequestError):
                self.gate.register(uid, EDGE, timeout)
            return
        self.gate.register(uid, EDGE, timeout)
        self.model[uid] = Model(self.clock(), timeout)

    @rule(
        uid=uids,
        seq=st.integers(0, 2),
        key=st.sampled_from(["k", None]),
        edge=st.sampled_from([EDGE, EDGE, EDGE, "other"]),
        epoch=st.sampled_from([0, 0, 0, 1]),
    )
    def announce(self, uid: str, seq: int, key: str | None, edge: str, epoch: int) -> None:
        ref = Ref(uid="p", edge=edge, seq=seq, end=True, key=key, epoch=epoch)
        answer = self.gate.announce(uid, ref)
        record = self.model.get(uid)
        fits = record is not None and edge == EDGE and epoch == 0
        if record is not None and fits and record.waits() and record.seen == NOTHING_SEEN:
            record.seen, record.since = seq, self.clock()
            if key is None:
                record.state = GateState.ENDED
                assert answer is Announcement.EMPTY_END
            else:
                record.fetching = True
                assert answer is Announcement.ACCEPTED
        else:
            assert answer in {Announcement.LATE, Announcement.DUPLICATE}
            repeated = fits and record is not None and seq <= record.seen
            alive = record is not None and record.state is not GateState.FAILED
            # A request opened without a ref has seen nothing, so nothing can repeat.
            assert (answer is Announcement.DUPLICATE) == (repeated and alive)

    @rule(uid=uids)
    def open(self, uid: str) -> None:
        self._try(uid, self.gate.open, {GateState.WAITING}, GateState.READY)

    @rule(uid=uids)
    def consume(self, uid: str) -> None:
        self._try(uid, self.gate.consume, {GateState.READY}, GateState.CONSUMED)

    @rule(uid=uids)
    def fail(self, uid: str) -> None:
        alive = {GateState.WAITING, GateState.READY, GateState.CONSUMED}
        self._try(uid, self.gate.fail, alive, GateState.FAILED)

    def _try(self, uid: str, call: object, allowed: set[GateState], after: GateState) -> None:
        assert callable(call)
        record = self.model.get(uid)
        if record is not None and record.state in allowed:
            call(uid)
            record.state, record.fetching = after, False
        else:
            with pytest.raises(IllegalMove):
                call(uid)

    @rule(uid=uids)
    def drop(self, uid: str) -> None:
        self.gate.drop(uid)
        self.model.pop(uid, None)

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 4.0, 700.0]))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def expire(self) -> None:
        now = self.clock()
        due = {
            uid: ExpiredWait(uid, EDGE, now - record.since, record.seen)
            for uid, record in self.model.items()
            if (at := record.due()) is not None and at <= now
        }
        found = self.gate.expired()
        assert {wait.uid: wait for wait in found} == due
        assert len(found) == len(due)
        for uid in due:
            self.model[uid].state, self.model[uid].fetching = GateState.FAILED, False

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.gate.check_integrity()
        assert len(self.gate) == len(self.model)
        open_states = {GateState.READY, GateState.CONSUMED}
        blocked = {uid for uid, record in self.model.items() if record.state not in open_states}
        assert {uid for uid in "abcd" if self.gate.blocked(uid)} == blocked
        assert self.gate.blocked_count == len(blocked)
        idle = sum(r.waits() and not r.fetching for r in self.model.values())
        assert self.gate.idle_count == idle
        for uid, record in self.model.items():
            assert self.gate.state(uid) is record.state
        dues = [at for record in self.model.values() if (at := record.due()) is not None]
        assert self.gate.next_due() == (min(dues) if dues else None)


TestGateMachine = GateMachine.TestCase
TestGateMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
