"""Behaviour of vLLM's scheduler that the stage schedulers rely on, shown on upstream's own classes.

A failure here means that upstream works differently, not that Antiphon has a fault.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import FinishReason
from vllm.v1.request import Request, RequestStatus

from factory import make_output, make_request, make_scheduler, step

BOTH = pytest.mark.parametrize(
    ("cls", "overlap"), [(Scheduler, False), (AsyncScheduler, True)], ids=["sync", "async"]
)


class Holding(Scheduler):
    """Holds the waiting requests in `held`, and counts whom it was asked about."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.held: set[str] = set()
        self.asked: list[str] = []

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        self.asked.append(request.request_id)
        held = request.request_id in self.held
        return not held and super()._handle_blocked_waiting_request(request)


class Parking(Scheduler):
    """Keeps new requests out of every queue, and notes whose state is freed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parked: list[Request] = []
        self.freed: list[str] = []

    def _enqueue_waiting_request(self, request: Request) -> None:
        self.parked.append(request)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self.freed.append(request.request_id)
        return super()._free_request(request, *args, **kwargs)


class Counting(Scheduler):
    """Notes whose state is freed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.freed: list[str] = []

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self.freed.append(request.request_id)
        return super()._free_request(request, *args, **kwargs)


def _free_blocks(scheduler: Scheduler) -> int:
    return scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


def _scheduled(output: SchedulerOutput) -> dict[str, int]:
    return output.num_scheduled_tokens


# --- waiting requests -----------------------------------------------------------------------------


def test_every_waiting_request_is_asked_about() -> None:
    scheduler = make_scheduler(Holding)
    for uid in "abc":
        scheduler.add_request(make_request(uid))
    scheduler.schedule()
    assert scheduler.asked == ["a", "b", "c"]


def test_a_held_request_is_passed_over_and_keeps_its_place() -> None:
    """Later requests overtake it while it is held; none does once it is released."""
    scheduler = make_scheduler(Holding, max_num_seqs=1)
    scheduler.held = {"a"}
    scheduler.add_request(make_request("a"))
    scheduler.add_request(make_request("b", max_tokens=1))
    assert _scheduled(step(scheduler)[0]) == {"b": 10}
    scheduler.add_request(make_request("c"))
    scheduler.held = set()
    assert _scheduled(step(scheduler)[0]) == {"a": 10}


def test_a_held_request_costs_no_block() -> None:
    scheduler = make_scheduler(Holding)
    before = _free_blocks(scheduler)
    scheduler.held = {"a"}
    scheduler.add_request(make_request("a", 100))
    step(scheduler)
    assert _free_blocks(scheduler) == before


def test_a_request_outside_every_queue_is_not_unfinished_work() -> None:
    """So an engine whose requests are all gated sleeps."""
    scheduler = make_scheduler(Parking)
    scheduler.add_request(make_request("a"))
    assert "a" in scheduler.requests
    assert scheduler.get_num_unfinished_requests() == 0
    assert _scheduled(scheduler.schedule()) == {}


def test_a_request_outside_every_queue_can_be_finished() -> None:
    scheduler = make_scheduler(Parking)
    scheduler.add_request(make_request("a"))
    finished = scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    assert [request.request_id for request in finished] == ["a"]
    assert scheduler.freed == ["a"]
    assert scheduler.requests == {}
    assert scheduler.schedule().finished_req_ids == {"a"}


# --- running requests -----------------------------------------------------------------------------


def test_next_decode_eligible_step_holds_a_running_request() -> None:
    """It keeps its blocks and its place among the running; its batch-mate goes on."""
    scheduler = make_scheduler(Scheduler)
    for uid in "ab":
        scheduler.add_request(make_request(uid, 20))
    step(scheduler)
    held = scheduler.requests["a"]
    blocks = scheduler.kv_cache_manager.get_block_ids("a")
    held.next_decode_eligible_step = scheduler.current_step + 2  # the next step is current + 1
    assert _scheduled(step(scheduler)[0]) == {"b": 1}
    assert held.status is RequestStatus.RUNNING
    assert scheduler.kv_cache_manager.get_block_ids("a") == blocks
    assert list(_scheduled(step(scheduler)[0])) == ["a", "b"]


# --- ends -----------------------------------------------------------------------------------------


@BOTH
def test_a_request_finished_before_the_update_is_skipped_by_it(
    cls: type[Scheduler], overlap: bool
) -> None:
    """Its batch-mates get their tokens, its blocks are free again."""
    scheduler = make_scheduler(cls, async_scheduling=overlap, enable_prefix_caching=False)
    before = _free_blocks(scheduler)
    for uid in "abc":
        scheduler.add_request(make_request(uid, max_tokens=1))
    scheduled = scheduler.schedule()
    output = make_output(scheduled, 7, scheduler=scheduler)
    scheduler.finish_requests("b", RequestStatus.FINISHED_ERROR)
    reported = scheduler.update_from_output(scheduled, output)[0].outputs
    assert {o.request_id: o.new_token_ids for o in reported} == {"a": [7], "c": [7]}
    assert _free_blocks(scheduler) == before
    assert scheduler.requests == {}


@pytest.mark.parametrize("end", ["stop", "length", "abort waiting", "abort running"])
def test_every_end_frees_the_request_exactly_once(end: str) -> None:
    scheduler = make_scheduler(Counting)
    limit = 1 if end == "length" else 5
    scheduler.add_request(make_request("a", max_tokens=limit, stop_token_ids=[9]))
    if end != "abort waiting":
        step(scheduler, 9 if end == "stop" else 7)
    if end.startswith("abort"):
        scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    step(scheduler)
    assert scheduler.freed == ["a"]


def test_finishing_an_unknown_or_ended_request_does_nothing() -> None:
    scheduler = make_scheduler(Counting)
    scheduler.add_request(make_request("a"))
    scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    assert scheduler.finish_requests(["a", "x"], RequestStatus.FINISHED_ERROR) == []
    assert scheduler.freed == ["a"]


def test_every_schedule_that_only_carries_an_end_clears_it() -> None:
    """So `has_requests` may be False right after it: an error must not wait for a later step."""
    scheduler = make_scheduler(Scheduler)
    scheduler.add_request(make_request("a"))
    scheduler.finish_requests("a", RequestStatus.FINISHED_ERROR)
    assert scheduler.has_requests()
    scheduler.schedule()
    assert not scheduler.has_requests()


# --- generation stages ----------------------------------------------------------------------------


def test_a_pooling_request_is_chunked_and_stops_when_its_output_arrives() -> None:
    scheduler = make_scheduler(Scheduler, max_num_batched_tokens=16)
    scheduler.add_request(make_request("a", 40, pooling=True))
    counts = []
    for _ in range(3):
        scheduled, reported = step(scheduler, pooler_fn=lambda _uid: torch.ones(3))
        counts.append(_scheduled(scheduled)["a"])
    (output,) = reported[0].outputs
    assert counts == [16, 16, 8]
    assert output.finish_reason is FinishReason.STOP
    assert output.pooling_output is not None
    assert torch.equal(output.pooling_output, torch.ones(3))
    assert scheduler.requests == {}


def test_a_pooling_request_goes_on_while_its_output_is_none() -> None:
    scheduler = make_scheduler(Scheduler)
    scheduler.add_request(make_request("a", pooling=True))
    step(scheduler, pooler_fn=lambda _uid: None)
    assert "a" in scheduler.requests


def test_an_output_tensor_rides_beside_a_sampled_token() -> None:
    """An autoregressive request is not stopped by it."""
    scheduler = make_scheduler(Scheduler)
    scheduler.add_request(make_request("a"))
    scheduled = scheduler.schedule()
    output = make_output(scheduled, 7, pooler_output=[torch.ones(2)])
    (reported,) = scheduler.update_from_output(scheduled, output)[0].outputs
    assert reported.new_token_ids == [7]
    assert reported.pooling_output is not None
    assert torch.equal(reported.pooling_output, torch.ones(2))
    assert scheduler.requests["a"].status is RequestStatus.RUNNING
