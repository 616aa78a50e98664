"""Every state of the gate and everything that can happen in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from core_refs import EDGE, chunk

from antiphon.core.gate import (
    TRANSITIONS,
    Announced,
    Announcement,
    Gate,
    GateEvent,
    GateState,
    IllegalMove,
)
from antiphon.core.moves import move
from antiphon.testing.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def gate(clock: ManualClock) -> Gate:
    return Gate(clock)


def bring_to(gate: Gate, clock: ManualClock, state: GateState) -> None:
    """Request "r" in this state, by the way of a request that has been given its input."""
    gate.register("r", EDGE, 600, stream=True)
    ways: dict[GateState, list[Callable[[str], None]]] = {
        GateState.WAITING: [],
        GateState.READY: [gate.open],
        GateState.CONSUMED: [gate.open, gate.consume],
        GateState.ENDED: [gate.open, gate.consume, gate.end],
        GateState.FAILED: [],
    }
    for step in ways[state]:
        step("r")
    if state is GateState.FAILED:
        clock.advance(601)
        assert gate.expired()
    assert gate.state("r") is state


# The moves, written down a second time, state by state.
TABLE = {
    GateState.WAITING: {
        GateEvent.ANNOUNCE: GateState.WAITING,
        GateEvent.OPEN: GateState.READY,
        GateEvent.END: GateState.ENDED,
        GateEvent.EXPIRE: GateState.FAILED,
    },
    GateState.READY: {
        GateEvent.ANNOUNCE: GateState.READY,
        GateEvent.CONSUME: GateState.CONSUMED,
    },
    GateState.CONSUMED: {
        GateEvent.ANNOUNCE: GateState.CONSUMED,
        GateEvent.OPEN: GateState.READY,
        GateEvent.STARVE: GateState.WAITING,
        GateEvent.END: GateState.ENDED,
    },
    GateState.ENDED: {},
    GateState.FAILED: {},
}


@pytest.mark.parametrize("state", GateState)
@pytest.mark.parametrize("event", GateEvent)
def test_every_state_and_event_of_the_table(state: GateState, event: GateEvent) -> None:
    if event in TABLE[state]:
        assert move(TRANSITIONS, state, event, "r") is TABLE[state][event]
    else:
        with pytest.raises(IllegalMove, match=f"r: {event.name} .* {state.name}"):
            move(TRANSITIONS, state, event, "r")


CALLS: dict[GateEvent, Callable[[Gate, str], None]] = {
    GateEvent.OPEN: Gate.open,
    GateEvent.STARVE: Gate.starve,
    GateEvent.END: Gate.end,
}


@pytest.mark.parametrize("state", GateState)
@pytest.mark.parametrize("event", CALLS)
def test_every_state_and_call(
    gate: Gate, clock: ManualClock, state: GateState, event: GateEvent
) -> None:
    bring_to(gate, clock, state)
    if event in TABLE[state]:
        CALLS[event](gate, "r")
        assert gate.state("r") is TABLE[state][event]
    else:
        with pytest.raises(IllegalMove, match=state.name):
            CALLS[event](gate, "r")
        assert gate.state("r") is state
    gate.check_integrity()


@pytest.mark.parametrize("state", GateState)
def test_consuming_is_ignored_unless_the_request_is_ready(
    gate: Gate, clock: ManualClock, state: GateState
) -> None:
    """A request is scheduled in many steps, of which one uses what has come."""
    bring_to(gate, clock, state)
    gate.consume("r")
    assert gate.state("r") is (GateState.CONSUMED if state is GateState.READY else state)
    gate.consume("unknown")


@pytest.mark.parametrize("state", GateState)
def test_a_chunk_moves_no_request(gate: Gate, clock: ManualClock, state: GateState) -> None:
    bring_to(gate, clock, state)
    over = state in (GateState.ENDED, GateState.FAILED)
    late, accepted = Announced(Announcement.LATE), Announced(Announcement.ACCEPTED, (chunk(),))
    assert gate.announce("r", chunk()) == (late if over else accepted)
    assert gate.state("r") is state


@pytest.mark.parametrize("state", GateState)
def test_only_what_waits_expires(gate: Gate, clock: ManualClock, state: GateState) -> None:
    bring_to(gate, clock, state)
    clock.advance(600)
    waits = state is GateState.WAITING
    assert bool(gate.expired()) == waits
    assert gate.state("r") is (GateState.FAILED if waits else state)


@pytest.mark.parametrize("event", CALLS)
def test_moving_an_unknown_request_is_illegal(gate: Gate, event: GateEvent) -> None:
    with pytest.raises(IllegalMove, match="not gated"):
        CALLS[event](gate, "unknown")


@pytest.mark.parametrize("state", [None, *GateState])
def test_a_request_can_be_dropped_in_every_state(
    gate: Gate, clock: ManualClock, state: GateState | None
) -> None:
    """C1, C2: after it nothing is left, wherever the request was."""
    if state is not None:
        bring_to(gate, clock, state)
    assert gate.drop("r") == []
    assert len(gate) == 0
    assert "r" not in gate
    assert (gate.blocked_count, gate.next_due()) == (0, None)
    gate.check_integrity()
