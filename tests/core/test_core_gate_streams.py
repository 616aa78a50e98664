"""The gate on stream edges: one request's way through its chunks."""

from __future__ import annotations

import pytest
from core_refs import EDGE, chunk, end_mark

from antiphon.core.chunks import MAX_AHEAD
from antiphon.core.gate import Announced, Announcement, ExpiredWait, Gate, GateState
from antiphon.errors import PayloadError
from antiphon.payload.ref import Ref
from antiphon.testing.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(start=50.0)


@pytest.fixture
def gate(clock: ManualClock) -> Gate:
    """A gate with one request, "r", of which nothing has come."""
    gate = Gate(clock)
    gate.register("r", EDGE, 10, stream=True)
    return gate


def fetched(gate: Gate, ref: Ref, uid: str = "r") -> list[int]:
    """The chunks whose turn a ref has brought."""
    answer = gate.announce(uid, ref)
    assert answer.kind is Announcement.ACCEPTED
    return [found.seq for found in answer.fetch]


def run_dry(gate: Gate) -> None:
    """A step has used what was there, and the next one needs more."""
    gate.open("r")
    gate.consume("r")
    gate.starve("r")


# --- the way through ------------------------------------------------------------------------------


def test_a_stream_waits_for_each_of_its_chunks(gate: Gate) -> None:
    for seq in range(3):
        assert fetched(gate, chunk(seq, end=seq == 2)) == [seq]
        assert gate.blocked("r")
        gate.open("r")
        assert not gate.blocked("r")
        gate.consume("r")
        assert not gate.blocked("r")
        if seq < 2:
            gate.starve("r")
    gate.end("r")
    assert gate.state("r") is GateState.ENDED
    assert gate.statistics().starved == 2
    gate.check_integrity()


def test_a_stream_that_has_ended_runs_on_without_waiting(gate: Gate) -> None:
    """Past the end its rows are padded: nothing is waited for any more."""
    fetched(gate, chunk(0, end=True))
    gate.open("r")
    gate.consume("r")
    gate.end("r")
    assert not gate.blocked("r")
    assert (gate.blocked_count, gate.next_due()) == (0, None)
    gate.check_integrity()


def test_a_stream_that_ends_while_it_waits_for_more_is_not_blocked(gate: Gate) -> None:
    fetched(gate, chunk(0))
    run_dry(gate)
    gate.end("r")
    assert not gate.blocked("r")
    assert gate.blocked_count == 0
    gate.check_integrity()


@pytest.mark.parametrize("state", [GateState.READY, GateState.CONSUMED])
def test_chunks_that_come_early_are_fetched_while_the_request_runs(
    gate: Gate, state: GateState
) -> None:
    fetched(gate, chunk(0))
    gate.open("r")
    if state is GateState.CONSUMED:
        gate.consume("r")
    assert fetched(gate, chunk(1)) == [1]
    assert gate.state("r") is state
    assert gate.next_due() is None


def test_a_stream_that_waited_too_long_stays_blocked(gate: Gate, clock: ManualClock) -> None:
    fetched(gate, chunk(0))
    gate.open("r")
    gate.consume("r")
    gate.starve("r")
    clock.advance(100_000)
    assert gate.expired()
    assert gate.blocked("r")
    gate.check_integrity()


# --- order ----------------------------------------------------------------------------------------


def test_chunks_are_fetched_by_number_whatever_order_they_come_in(gate: Gate) -> None:
    """C107."""
    assert fetched(gate, chunk(2)) == []
    assert fetched(gate, chunk(0)) == [0]
    assert fetched(gate, chunk(3, end=True)) == []
    assert fetched(gate, chunk(1)) == [1, 2, 3]
    assert gate.statistics().accepted == 4


def test_no_request_waits_for_the_chunks_of_another(gate: Gate) -> None:
    """C107: one missing chunk holds up its own stream only."""
    gate.register("other", EDGE, 10, stream=True)
    assert fetched(gate, chunk(1)) == []
    assert fetched(gate, chunk(0), uid="other") == [0]
    assert fetched(gate, chunk(1), uid="other") == [1]


@pytest.mark.parametrize("seq", [0, 2], ids=["fetched", "behind a gap"])
def test_a_repeated_chunk_is_dropped_and_counted(gate: Gate, seq: int) -> None:
    gate.announce("r", chunk(0))
    gate.announce("r", chunk(2))
    assert gate.announce("r", chunk(seq)) == Announced(Announcement.DUPLICATE)
    assert gate.statistics().duplicates == 1
    assert fetched(gate, chunk(1)) == [1, 2]


def test_chunks_behind_the_end_are_late(gate: Gate) -> None:
    gate.announce("r", chunk(0, end=True))
    assert gate.announce("r", chunk(1)) == Announced(Announcement.LATE)
    assert gate.statistics().late == 1


def test_chunks_behind_the_end_are_given_back_if_they_came_before_it(gate: Gate) -> None:
    gate.announce("r", chunk(2))
    gate.announce("r", chunk(3))
    answer = gate.announce("r", chunk(1, end=True))
    assert answer.fetch == ()
    assert set(answer.discard) == {chunk(2), chunk(3)}
    assert gate.statistics().late == 2
    assert fetched(gate, chunk(0)) == [0, 1]
    assert gate.drop("r") == []


def test_too_many_chunks_behind_a_gap_are_an_error_that_loses_none(gate: Gate) -> None:
    behind = [chunk(seq) for seq in range(1, MAX_AHEAD + 2)]
    for ref in behind[:-1]:
        gate.announce("r", ref)
    with pytest.raises(PayloadError, match="wait for chunk 0"):
        gate.announce("r", behind[-1])
    gate.check_integrity()
    assert gate.drop("r") == behind


# --- ends that bring nothing ----------------------------------------------------------------------


def test_a_stream_that_ends_with_nothing_finishes_at_once(gate: Gate) -> None:
    """C115."""
    assert gate.announce("r", end_mark()) == Announced(Announcement.EMPTY_END)
    assert gate.state("r") is GateState.ENDED
    assert gate.blocked("r")


def test_an_empty_end_gives_back_what_came_before_it(gate: Gate) -> None:
    gate.announce("r", chunk(1))
    assert gate.announce("r", end_mark()) == Announced(Announcement.EMPTY_END, discard=(chunk(1),))
    assert gate.drop("r") == []


@pytest.mark.parametrize("early", [False, True], ids=["in order", "before its turn"])
def test_an_empty_end_after_chunks_is_handed_on(gate: Gate, early: bool) -> None:
    """The adapter may owe something: it is told of the end, in its turn."""
    refs = [chunk(0), end_mark(1)]
    handed = [seq for ref in (reversed(refs) if early else refs) for seq in fetched(gate, ref)]
    assert handed == [0, 1]
    assert gate.state("r") is GateState.WAITING
    assert gate.statistics().empty_ends == 0


@pytest.mark.parametrize("state", [GateState.READY, GateState.CONSUMED, GateState.WAITING])
def test_an_empty_end_is_handed_on_in_every_state_of_a_stream_that_runs(
    gate: Gate, state: GateState
) -> None:
    fetched(gate, chunk(0))
    gate.open("r")
    if state is not GateState.READY:
        gate.consume("r")
    if state is GateState.WAITING:
        gate.starve("r")
    assert fetched(gate, end_mark(1)) == [1]
    assert gate.state("r") is state


# --- deadlines ------------------------------------------------------------------------------------


def test_every_chunk_in_order_is_progress(gate: Gate, clock: ManualClock) -> None:
    """C12: the time counts from the last progress, not from the request's begin."""
    for seq in range(4):
        clock.advance(9)
        gate.announce("r", chunk(seq))
    assert gate.expired() == []
    clock.advance(10)
    assert gate.expired() == [ExpiredWait("r", EDGE, 10.0, 3)]


def test_a_chunk_behind_a_gap_is_no_progress(gate: Gate, clock: ManualClock) -> None:
    gate.announce("r", chunk(0))
    clock.advance(6)
    gate.announce("r", chunk(2))
    clock.advance(4)
    assert gate.expired() == [ExpiredWait("r", EDGE, 10.0, 0)]


def test_closing_a_gap_is_progress(gate: Gate, clock: ManualClock) -> None:
    gate.announce("r", chunk(1))
    clock.advance(9)
    gate.announce("r", chunk(0))
    assert gate.next_due() == clock() + 10


def test_the_deadline_starts_anew_when_a_stream_runs_dry(gate: Gate, clock: ManualClock) -> None:
    gate.announce("r", chunk(0))
    gate.open("r")
    gate.consume("r")
    clock.advance(1000)  # computing is no waiting
    gate.starve("r")
    assert gate.next_due() == clock() + 10
    clock.advance(10)
    assert gate.expired() == [ExpiredWait("r", EDGE, 10.0, 0)]


def test_a_stream_that_may_wait_for_ever_never_expires(gate: Gate, clock: ManualClock) -> None:
    gate.drop("r")
    gate.register("r", EDGE, 0, stream=True)
    for seq in range(2):
        gate.announce("r", chunk(seq))
        run_dry(gate)
        clock.advance(1e9)
        assert gate.expired() == []
    assert gate.next_due() is None
    gate.check_integrity()


def test_a_stream_that_runs_dry_in_a_pause_counts_from_its_end(
    gate: Gate, clock: ManualClock
) -> None:
    gate.announce("r", chunk(0))
    gate.pause()
    run_dry(gate)
    clock.advance(100)
    gate.announce("r", chunk(1))
    gate.resume()
    assert gate.next_due() == clock() + 10


# --- dropping -------------------------------------------------------------------------------------


def test_dropping_gives_back_what_waits_behind_a_gap(gate: Gate) -> None:
    """C66: payloads that nobody will fetch are named, so that they can be freed."""
    for seq in (0, 2, 4):
        gate.announce("r", chunk(seq))
    gate.announce("r", end_mark(5))
    assert gate.drop("r") == [chunk(2), chunk(4), end_mark(5)]
    assert gate.drop("r") == []
    gate.check_integrity()


def test_dropping_gives_back_nothing_that_is_being_fetched(gate: Gate) -> None:
    gate.announce("r", chunk(1))
    gate.announce("r", chunk(0))
    assert gate.drop("r") == []
