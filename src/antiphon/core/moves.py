"""What all state machines share: looking a move up in a transition table."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

State = TypeVar("State", bound=enum.Enum)
Event = TypeVar("Event", bound=enum.Enum)


class IllegalMove(RuntimeError):
    """A move that the state machine's table does not have: a defect in the code that drives it."""


def move(
    table: Mapping[tuple[State, Event], State], state: State, event: Event, owner: str
) -> State:
    """The state after `event`. Raises IllegalMove, which names `owner`, if it has none."""
    try:
        return table[state, event]
    except KeyError:
        raise IllegalMove(f"{owner}: {event.name} is not possible in state {state.name}.") from None
