"""A request whose edges want nothing of its steps costs the scheduler nothing in any of them."""

from __future__ import annotations

import pytest
from sched_engine import OUT, Stage

from antiphon.core.tickets import Ended, Ticket
from antiphon.sched.ar import ARScheduler, AsyncARScheduler

BOTH = pytest.mark.parametrize("cls", [ARScheduler, AsyncARScheduler], ids=["sync", "async"])


@BOTH
def test_quiet_edges_are_told_of_begin_and_end_alone(cls: type[ARScheduler]) -> None:
    """C81: no token is noted for them, and steps between carry no orders at all."""
    stage = Stage(cls)
    stage.scheduler.coordinator.quiet_edges = frozenset([OUT])
    stage.submit("a", n=6, max_tokens=5, edges=(OUT,))
    assert not stage.scheduler.coordinator.routed
    stage.drain()
    assert len(stage.outcomes["a"].tokens) == 5
    assert [t for w in stage.works for t in w.tickets] == [Ticket("a", (OUT,), {})]
    assert [e for w in stage.works for e in w.ended] == [Ended("a", True, 11)]
    assert len(stage.works) == 2
    assert not any(w.tokens for w in stage.works)
    stage.check_empty()


@BOTH
def test_one_edge_that_is_not_quiet_is_told_everything(cls: type[ARScheduler]) -> None:
    stage = Stage(cls)
    stage.scheduler.coordinator.quiet_edges = frozenset(["another"])
    stage.submit("a", n=6, max_tokens=5, edges=(OUT, "another"))
    stage.submit("b", n=6, max_tokens=5, edges=("another",))
    stage.drain()
    assert stage.updates("a") == stage.outcomes["a"].tokens
    assert stage.updates("b") == []
    stage.check_empty()


@BOTH
def test_an_aborted_quiet_request_ends_for_the_worker(cls: type[ARScheduler]) -> None:
    stage = Stage(cls)
    stage.scheduler.coordinator.quiet_edges = frozenset([OUT])
    stage.submit("a", n=6, max_tokens=50, edges=(OUT,))
    stage.step()
    stage.abort("a")
    stage.drain()
    assert [(e.uid, e.keep) for w in stage.works for e in w.ended] == [("a", False)]
    stage.check_empty()
