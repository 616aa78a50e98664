"""The gate: registration, full edges, refs that fit nowhere, deadlines."""

from __future__ import annotations

import math

import pytest
from core_refs import EDGE, chunk, end_mark

from antiphon.core.gate import (
    NOTHING_SEEN,
    Announced,
    Announcement,
    ExpiredWait,
    Gate,
    GateState,
)
from antiphon.errors import DuplicateRequestError
from antiphon.payload.ref import Ref
from antiphon.testing.clock import ManualClock

LATE = Announced(Announcement.LATE)
DUPLICATE = Announced(Announcement.DUPLICATE)


def accepted(*fetch: Ref) -> Announced:
    return Announced(Announcement.ACCEPTED, fetch)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(start=50.0)


@pytest.fixture
def gate(clock: ManualClock) -> Gate:
    return Gate(clock)


# --- the way through a full edge ------------------------------------------------------------------


def test_a_request_waits_until_its_prompt_is_planned(gate: Gate) -> None:
    gate.register("r", EDGE, 600)
    assert gate.blocked("r")
    assert gate.announce("r", chunk(end=True)) == accepted(chunk(end=True))
    assert gate.blocked("r")
    gate.open("r")
    assert not gate.blocked("r")
    gate.consume("r")
    assert gate.state("r") is GateState.CONSUMED
    gate.check_integrity()


def test_ungated_requests_are_not_blocked(gate: Gate) -> None:
    assert not gate.blocked("unknown")
    assert gate.state("unknown") is None
    assert "unknown" not in gate


def test_blocked_requests_are_counted_until_their_gates_open(gate: Gate) -> None:
    gate.register("a", EDGE, 600)
    gate.register("b", EDGE, 600)
    gate.announce("a", chunk())
    assert gate.blocked_count == 2
    gate.open("a")
    assert gate.blocked_count == 1


def test_an_empty_end_finishes_at_once(gate: Gate) -> None:
    """C115: a producer that ends with nothing is not silence."""
    gate.register("r", EDGE, 600)
    assert gate.announce("r", end_mark()) == Announced(Announcement.EMPTY_END)
    assert gate.state("r") is GateState.ENDED
    assert gate.blocked("r")  # never to be scheduled with its placeholder
    assert gate.next_due() is None
    assert gate.statistics().empty_ends == 1


def test_a_live_uid_cannot_be_registered_again(gate: Gate) -> None:
    """C87."""
    gate.register("r", EDGE, 600)
    gate.open("r")
    with pytest.raises(DuplicateRequestError, match="r"):
        gate.register("r", EDGE, 600)
    assert gate.state("r") is GateState.READY
    gate.check_integrity()


@pytest.mark.parametrize("timeout", [-1.0, math.nan, math.inf])
def test_an_impossible_timeout_registers_nothing(gate: Gate, timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout of r"):
        gate.register("r", EDGE, timeout)
    assert len(gate) == 0
    gate.check_integrity()


def test_a_dropped_uid_starts_afresh(gate: Gate) -> None:
    """C87: after its end, the same id has no memory of what it saw."""
    gate.register("r", EDGE, 600)
    gate.announce("r", chunk())
    gate.drop("r")
    gate.register("r", EDGE, 600)
    assert gate.announce("r", chunk()).kind is Announcement.ACCEPTED


# --- a full edge is a stream of one chunk ---------------------------------------------------------


@pytest.mark.parametrize("marked", [True, False])
def test_the_chunk_of_a_full_edge_is_handed_on_as_the_last(gate: Gate, marked: bool) -> None:
    gate.register("r", EDGE, 600)
    assert gate.announce("r", chunk(end=marked)).fetch == (chunk(end=True),)


def test_an_unmarked_empty_chunk_of_a_full_edge_is_its_end(gate: Gate) -> None:
    gate.register("r", EDGE, 600)
    ref = Ref(uid="producer", edge=EDGE, seq=0, end=False)
    assert gate.announce("r", ref).kind is Announcement.EMPTY_END


@pytest.mark.parametrize("ref", [chunk(1), end_mark(1)], ids=["payload", "end mark"])
def test_what_follows_the_chunk_of_a_full_edge_is_late(gate: Gate, ref: Ref) -> None:
    gate.register("r", EDGE, 600)
    gate.announce("r", chunk())
    assert gate.announce("r", ref) == LATE
    gate.open("r")
    assert gate.announce("r", ref) == LATE
    assert gate.state("r") is GateState.READY


def test_a_second_payload_that_overtakes_the_first_is_given_back(gate: Gate) -> None:
    gate.register("r", EDGE, 600)
    assert gate.announce("r", chunk(1)) == accepted()
    answer = gate.announce("r", chunk(0))
    assert answer.fetch == (chunk(0, end=True),)
    assert [ref.key for ref in answer.discard] == [chunk(1).key]


def test_a_repeated_ref_is_dropped_while_its_payload_is_fetched(gate: Gate) -> None:
    gate.register("r", EDGE, 600)
    gate.announce("r", chunk())
    assert gate.announce("r", chunk()) == DUPLICATE


# --- refs to the wrong place ----------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["full", "stream"])
@pytest.mark.parametrize(
    "ref",
    [chunk(edge="other", epoch=3), chunk(epoch=2), chunk(epoch=4)],
    ids=["edge", "older", "newer"],
)
def test_refs_of_another_edge_or_epoch_are_late(gate: Gate, ref: Ref, stream: bool) -> None:
    gate.register("r", EDGE, 600, stream=stream, epoch=3)
    assert gate.announce("r", ref) == LATE
    assert gate.announce("r", chunk(epoch=3)).kind is Announcement.ACCEPTED


def test_refs_for_the_unknown_and_the_failed_are_late_and_counted(
    gate: Gate, clock: ManualClock
) -> None:
    """C66: counted, never raised."""
    assert gate.announce("unknown", chunk()) == LATE
    gate.register("r", EDGE, 600)
    clock.advance(601)
    assert gate.expired()
    assert gate.announce("r", chunk()) == LATE
    assert gate.statistics().late == 2


def test_a_repeated_ref_of_a_failed_request_is_late(gate: Gate, clock: ManualClock) -> None:
    """Its key must be discarded: nobody fetches it any more."""
    gate.register("r", EDGE, 600)
    gate.announce("r", chunk())
    clock.advance(601)
    assert gate.expired()
    assert gate.announce("r", chunk()) == LATE


# --- deadlines ------------------------------------------------------------------------------------


def test_an_expired_wait_names_edge_time_and_last_seq(gate: Gate, clock: ManualClock) -> None:
    """C12."""
    gate.register("r", EDGE, 5)
    assert gate.next_due() == 55.0
    clock.advance(6)
    assert gate.expired() == [ExpiredWait("r", EDGE, 6.0, NOTHING_SEEN)]
    assert gate.state("r") is GateState.FAILED
    assert gate.expired() == []
    assert gate.blocked_count == 1
    assert gate.statistics().expired == 1


def test_an_announced_payload_is_progress(gate: Gate, clock: ManualClock) -> None:
    gate.register("r", EDGE, 5)
    clock.advance(4)
    gate.announce("r", chunk())
    clock.advance(4)
    assert gate.expired() == []
    clock.advance(1)
    assert gate.expired() == [ExpiredWait("r", EDGE, 5.0, 0)]


@pytest.mark.parametrize("ref", [chunk(0), chunk(1), chunk(edge="x")], ids=["0", "1", "edge"])
def test_repeated_and_late_refs_are_no_progress(gate: Gate, clock: ManualClock, ref: Ref) -> None:
    gate.register("r", EDGE, 5)
    gate.announce("r", chunk(0))
    clock.advance(4)
    gate.announce("r", ref)
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
    clock.advance(1e9)
    assert [wait.uid for wait in gate.expired()] == ["long"]
    assert gate.state("forever") is GateState.WAITING


def test_no_wait_grows_older_in_a_pause(gate: Gate, clock: ManualClock) -> None:
    gate.register("r", EDGE, 5)
    clock.advance(3)
    gate.pause()
    clock.advance(100)
    assert gate.expired() == []
    assert gate.next_due() is None
    gate.resume()
    assert gate.next_due() == clock() + 2
    clock.advance(2)
    assert gate.expired() == [ExpiredWait("r", EDGE, 5.0, NOTHING_SEEN)]
