"""Producers on stream edges: a full edge parks the request, which goes on when there is room."""

from __future__ import annotations

from typing import Any

import pytest
from sched_core import sampled
from sched_engine import Stage, plan
from sched_worker import CHUNK_BYTES, OUT, Given
from vllm.v1.engine import FinishReason
from vllm.v1.request import RequestStatus

from antiphon.core.budget import EdgeLimits
from antiphon.core.gate import GateState
from antiphon.errors import StageStepError
from antiphon.payload.ref import Ref
from antiphon.sched.ar import ARScheduler, AsyncARScheduler
from antiphon.testing.clock import ManualClock

BOTH = pytest.mark.parametrize("cls", [ARScheduler, AsyncARScheduler], ids=["sync", "async"])

TWO = EdgeLimits(request_chunks=2)


def full(cls: type[ARScheduler] = ARScheduler, limits: EdgeLimits = TWO, **kw: Any) -> Stage:
    """Request "a" has filled its edge, and nothing else is to be done."""
    stage = Stage(cls, limits=limits, **kw)
    stage.submit("a", max_tokens=30, edges=(OUT,))
    stage.drain()
    return stage


def under_way(stage: Stage) -> int:
    """Chunks that may come after the one that filled the edge: one for each step on the device,
    and for each step whose tokens are accepted but not told to the worker yet.
    """
    return 2 * stage.depth - 1


# --- parked and released --------------------------------------------------------------------------


@BOTH
def test_a_full_edge_parks_its_producer(cls: type[ARScheduler]) -> None:
    """It keeps its place, its blocks and its seat; the engine sleeps.

    The limits say when to stop: what is in flight then still comes.
    """
    stage = full(cls)
    held = stage.scheduler.kv_cache_manager.get_block_ids("a")
    assert not stage.has_work
    assert 2 <= len(stage.sent) <= 2 + under_way(stage)
    assert stage.scheduler.requests["a"].status is RequestStatus.RUNNING
    stage.submit("b", max_tokens=3)
    stage.step()
    assert [request.request_id for request in stage.scheduler.running] == ["a", "b"]
    stage.drain()
    assert stage.ends("b") == [FinishReason.LENGTH]
    assert stage.scheduler.kv_cache_manager.get_block_ids("a") == held


@BOTH
def test_a_producer_goes_on_when_its_chunks_are_used(cls: type[ARScheduler]) -> None:
    stage = full(cls)
    before = len(stage.outcomes["a"].tokens)
    sent = len(stage.sent)
    stage.consume(sent - 2)
    assert not stage.has_work  # still at its limit
    stage.consume(1)
    assert stage.has_work
    stage.drain()
    assert len(stage.outcomes["a"].tokens) > before
    assert not stage.has_work


@BOTH
@pytest.mark.parametrize("portion", [1, 2, 9])
def test_a_slow_consumer_changes_nothing_but_the_time(cls: type[ARScheduler], portion: int) -> None:
    stage = full(cls)
    for _ in range(60):
        stage.consume(portion)
        stage.drain()
        statistics = stage.scheduler.coordinator.outflow.statistics()[OUT]
        assert statistics.chunks <= 2 + under_way(stage)
    assert stage.outcomes["a"].tokens == sampled("a", 10, 30)
    assert stage.updates("a") == stage.outcomes["a"].tokens
    stage.check_empty()


@BOTH
def test_bytes_are_limited_as_well(cls: type[ARScheduler]) -> None:
    stage = full(cls, EdgeLimits(request_bytes=3 * CHUNK_BYTES))
    assert 3 <= len(stage.sent) <= 3 + under_way(stage)
    stage.consume()
    assert stage.has_work


@BOTH
def test_a_request_without_edges_is_never_parked(cls: type[ARScheduler]) -> None:
    stage = full(cls)
    stage.submit("text", max_tokens=50)
    stage.drain()
    assert stage.ends("text") == [FinishReason.LENGTH]


@BOTH
def test_the_total_parks_those_that_have_something_outstanding(cls: type[ARScheduler]) -> None:
    """A request with nothing outstanding goes on, so whoever is served gets on."""
    stage = Stage(cls, limits=EdgeLimits(total_chunks=4))
    for uid in "abc":
        stage.submit(uid, max_tokens=12, edges=(OUT,))
    stage.drain()
    assert not stage.has_work
    assert {ref.uid for ref in stage.sent} == set("abc")
    for _ in range(40):  # a consumer that serves "a" alone until it is done
        if stage.ends("a"):
            break
        stage.consume(uid="a")
        stage.drain()
    assert stage.ends("a") == [FinishReason.LENGTH]
    assert stage.ends("b") == stage.ends("c") == []
    for _ in range(40):
        stage.consume()
        stage.drain()
    stage.check_empty()


# --- a producer in flight -------------------------------------------------------------------------


def test_a_request_in_flight_brings_what_it_has_computed() -> None:
    """Asynchronously one more step is on the device when the edge is full: nothing is lost."""
    stage = Stage(AsyncARScheduler, limits=TWO)
    stage.submit("a", max_tokens=9, edges=(OUT,))
    while not stage.scheduler.parking.held:
        stage.step()
    assert stage.in_flight
    told = len(stage.outcomes["a"].tokens)
    stage.drain()
    assert len(stage.outcomes["a"].tokens) > told
    assert stage.updates("a") == stage.outcomes["a"].tokens == sampled("a", 10, len(stage.sent))


@pytest.mark.parametrize("max_tokens", [2, 3, 4])
def test_a_parked_request_may_end_by_what_was_in_flight(max_tokens: int) -> None:
    stage = Stage(AsyncARScheduler, limits=TWO)
    stage.submit("a", max_tokens=max_tokens, edges=(OUT,))
    stage.drain()
    stage.consume()
    stage.drain()
    assert stage.ends("a") == [FinishReason.LENGTH]
    assert stage.outcomes["a"].tokens == sampled("a", 10, max_tokens)
    stage.check_empty()


@BOTH
def test_a_prompt_in_portions_is_parked_too(cls: type[ARScheduler]) -> None:
    """Rows of a long prompt are chunks like any other."""
    stage = Stage(cls, limits=TWO, max_num_batched_tokens=8)
    stage.submit("a", 40, max_tokens=2, edges=(OUT,))
    stage.step()
    for seq in (70, 71):
        stage.refs.append(Ref("a", OUT, seq, False, key=f"prompt-{seq}", nbytes=8))
    stage.drain()
    assert stage.outcomes["a"].tokens == []
    assert stage.scheduler.requests["a"].num_computed_tokens < 40
    stage.consume()
    stage.drain()
    assert len(stage.outcomes["a"].tokens) == 2
    stage.check_empty()


# --- what cannot be stored yet --------------------------------------------------------------------


@BOTH
def test_a_retry_is_ordered_when_it_is_due(cls: type[ARScheduler]) -> None:
    """Nobody polls for it: the engine sleeps, and a step of its own carries the order."""
    clock = ManualClock()
    stage = Stage(cls, limits=TWO, clock=clock)
    stage.submit("a", max_tokens=1, edges=(OUT,))
    stage.worker.retry_in_s = 2.0
    stage.drain()
    assert stage.scheduler.next_due() == 2.0
    clock.advance(1.9)
    assert not stage.has_work
    clock.advance(0.1)
    before = len(stage.works)
    stage.drain()
    assert [work.retry for work in stage.works[before:]] == [True]
    assert stage.scheduler.next_due() is None


def test_the_earliest_retry_counts() -> None:
    clock = ManualClock()
    stage = Stage(limits=TWO, clock=clock)
    stage.submit("a", max_tokens=9, edges=(OUT,))
    for delay in (5.0, 2.0, 4.0):
        stage.worker.retry_in_s = delay
        stage.step()
    assert stage.scheduler.next_due() == 2.0


# --- starved and full -----------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("first", ["row", "room"])
def test_a_request_that_lacks_a_row_and_room_waits_for_both(
    cls: type[ARScheduler], first: str
) -> None:
    stage = Stage(cls, limits=EdgeLimits(request_chunks=1))
    stage.submit("a", stream=True, max_tokens=9, edges=(OUT,))
    stage.deliver("a", Given(plan(1, 2, 3), 1), seq=0, end=False)
    stage.drain()
    assert stage.scheduler.coordinator.outflow.full("a")
    assert stage.scheduler.coordinator.gate.state("a") is GateState.WAITING
    before = len(stage.outcomes["a"].tokens)
    for what in (first, "room" if first == "row" else "row"):
        assert len(stage.outcomes["a"].tokens) == before
        if what == "row":
            stage.deliver("a", 5, seq=1, end=False)
        else:
            stage.consume()
        stage.drain()
    assert len(stage.outcomes["a"].tokens) > before


# --- ends -----------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("how", ["abort", "fail"])
def test_a_parked_producer_can_end(cls: type[ARScheduler], how: str) -> None:
    """C1, C2. What it has sent counts until its consumers, or the orchestrator, give it back."""
    stage = full(cls)
    if how == "abort":
        stage.abort("a")
    else:
        stage.scheduler.fail_requests(["a"], StageStepError("broken"))
    stage.drain()
    stage.check_empty()
    outflow = stage.scheduler.coordinator.outflow
    assert outflow.statistics()[OUT].chunks == len(stage.sent)
    stage.scheduler.abandon(["a"])
    assert outflow.statistics()[OUT].chunks == 0
    stage.drain()
    discarded = [key for work in stage.works for key in work.discards]
    assert discarded == [ref.key for ref in stage.sent]


@BOTH
def test_the_end_of_a_producer_gives_room_to_another(cls: type[ARScheduler]) -> None:
    stage = Stage(cls, limits=EdgeLimits(total_chunks=3))
    for uid in "ab":
        stage.submit(uid, max_tokens=9, edges=(OUT,))
    stage.drain()
    stage.abort("a")
    stage.scheduler.abandon(["a"])
    stage.drain()
    stage.consume()
    assert stage.has_work
    for _ in range(9):
        stage.drain()
        stage.consume()
    assert stage.outcomes["b"].tokens == sampled("b", 10, 9)
    stage.check_empty()


@BOTH
def test_discarded_chunks_are_room_again(cls: type[ARScheduler]) -> None:
    """A consumer that ended: its chunks come back as discards."""
    stage = full(cls)
    stage.scheduler.discard([ref.key for ref in stage.sent if ref.key is not None])
    before = len(stage.outcomes["a"].tokens)
    stage.drain()
    assert len(stage.outcomes["a"].tokens) > before


@BOTH
def test_chunks_of_a_request_that_has_ended_park_nobody(cls: type[ARScheduler]) -> None:
    """They are announced with the step after its end."""
    stage = Stage(cls, limits=EdgeLimits(request_chunks=1))
    stage.submit("a", max_tokens=1, edges=(OUT,))
    stage.drain()
    stage.check_empty()
    assert stage.scheduler.coordinator.outflow.statistics()[OUT].blocked == 0


# --- a session that produces ----------------------------------------------------------------------


@BOTH
def test_room_does_not_wake_a_session_that_rests(cls: type[ARScheduler]) -> None:
    stage = Stage(cls, limits=TWO)
    stage.submit("s", 5, session=True, max_tokens=3, edges=(OUT,))
    stage.drain()
    stage.consume()
    stage.drain()
    assert [end.reason for end in stage.segments] == ["length"]
    tokens = list(stage.outcomes["s"].tokens)
    for _ in range(3):
        stage.consume()
        stage.drain()
    assert stage.outcomes["s"].tokens == tokens
    assert not stage.has_work


@BOTH
@pytest.mark.parametrize("queued", [True, False])
def test_a_segment_begins_when_the_edge_has_room(cls: type[ARScheduler], queued: bool) -> None:
    """It comes to its place among those that hold blocks."""
    stage = Stage(cls, limits=TWO)
    last = 2 + stage.depth  # the edge is full when the first segment ends
    stage.submit("s", 5, session=True, max_tokens=last, edges=(OUT,))
    if queued:
        stage.update("s", 1, 7, 8, 9)
    stage.drain()
    if not queued:
        stage.update("s", 1, 7, 8, 9)
        stage.drain()
    assert [end.epoch for end in stage.segments] == [0]
    assert 1 not in stage.outcomes["s"].by_epoch
    stage.consume()
    assert [request.request_id for request in stage.scheduler.kv_holding_waiting] == ["s"]
    stage.drain()
    length = 5 + last - 1 + 3
    told = stage.outcomes["s"].by_epoch[1]
    assert told
    assert told == sampled("s", length, len(told))
    stage.consume()
    stage.abort("s")
    stage.drain()
    stage.check_empty()
