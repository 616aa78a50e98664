"""Where the stage schedulers differ from upstream's on purpose: docs/differences.md names these."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import FinishReason
from vllm.v1.outputs import LogprobsLists
from vllm.v1.request import Request, RequestStatus

from antiphon.core.kv_handoff import KvTransfer
from antiphon.core.options import ConnectorSpec, OutEdge, StageOptions
from antiphon.core.prompt_plan import PromptPlan, PromptUpdate, UpdateKind
from antiphon.core.tickets import Arrived, KvAck, KvShip, StageNews
from antiphon.errors import KVTransferError, StageStepError
from antiphon.payload.ref import Ref
from antiphon.sched.ar import ARMixin, ARScheduler, AsyncARScheduler
from antiphon.sched.events import SegmentEnd
from antiphon.sched.generation import GenerationScheduler
from antiphon.sched.inputs import Wait
from antiphon.sched.mixin import StageSchedulerMixin
from antiphon.sched.sessions import SessionUpdate
from antiphon.upstream.envelopes import with_news, work_of
from factory import make_output, make_request, make_scheduler, step

BOTH = pytest.mark.parametrize(
    ("cls", "overlap"), [(ARScheduler, False), (AsyncARScheduler, True)], ids=["sync", "async"]
)


def _add_gated(
    scheduler: StageSchedulerMixin, uid: str, arrival: float = 0.0, *, stream: bool = False
) -> None:
    scheduler.coordinator.expect(
        uid, wait=Wait("edge", 0.0, stream), edges=(), params={}, num_prompt_tokens=1
    )
    pools = not scheduler.samples
    scheduler.add_request(
        make_request(uid, 1, arrival_time=arrival, pooling=pools, resumable=pools)
    )


def _add_session(scheduler: ARMixin, uid: str, n: int = 10, **kw: Any) -> Request:
    request = make_request(uid, n, resumable=True, **kw)
    scheduler.coordinator.expect(uid, wait=None, edges=(), params={}, num_prompt_tokens=n)
    scheduler.add_request(request)
    scheduler.open_session(uid, 0)
    return request


def _plan(
    scheduler: StageSchedulerMixin, uid: str, n: int, *, last: bool = True
) -> SchedulerOutput:
    """One step in which the worker answers with a prompt for a request that waits."""
    scheduled = scheduler.schedule()
    pool = None if scheduler.samples else _pooled
    output = make_output(scheduled, scheduler=scheduler, pooler_fn=pool)
    plan = PromptPlan(tuple(range(1, n + 1)))
    news = StageNews([Arrived(uid, "key", last, plan)])
    scheduler.update_from_output(scheduled, with_news(output, news))
    return scheduled


def _pooled(_uid: str) -> torch.Tensor:
    return torch.ones(1)


def _starving(**kw: Any) -> StageSchedulerMixin:
    """A scheduler whose request "a" has sampled a token, and lacks the row to feed it back."""
    scheduler = make_scheduler(ARScheduler, enable_prefix_caching=False, **kw)
    _add_gated(scheduler, "a", stream=True)
    _plan(scheduler, "a", 7, last=False)
    step(scheduler)
    assert step(scheduler)[0].num_scheduled_tokens == {}
    return scheduler


@BOTH
def test_a_gated_request_is_in_no_queue(cls: type[StageSchedulerMixin], overlap: bool) -> None:
    """It can be found and ended, but costs no step: the engine sleeps."""
    scheduler = make_scheduler(cls, async_scheduling=overlap)
    _add_gated(scheduler, "a")
    assert "a" in scheduler.requests
    assert scheduler.get_request_counts() == (0, 0)
    assert not scheduler.has_requests()


@BOTH
def test_a_plan_replaces_the_placeholder(cls: type[StageSchedulerMixin], overlap: bool) -> None:
    scheduler = make_scheduler(cls, async_scheduling=overlap)
    _add_gated(scheduler, "a")
    assert _plan(scheduler, "a", 30).num_scheduled_tokens == {}
    assert scheduler.schedule().num_scheduled_tokens == {"a": 30}


def test_an_opened_request_takes_the_place_of_its_arrival() -> None:
    """Upstream would put it behind everything that has been added meanwhile."""
    scheduler = make_scheduler(ARScheduler, max_num_seqs=1)
    scheduler.add_request(make_request("first", max_tokens=2, arrival_time=1.0))
    _add_gated(scheduler, "gated", arrival=2.0)
    scheduler.add_request(make_request("late", arrival_time=3.0))
    _plan(scheduler, "gated", 10)
    step(scheduler)
    assert list(step(scheduler)[0].num_scheduled_tokens) == ["gated"]


@BOTH
def test_orders_for_the_worker_keep_the_engine_awake(
    cls: type[StageSchedulerMixin], overlap: bool
) -> None:
    """A step without any token carries them."""
    scheduler = make_scheduler(cls, async_scheduling=overlap)
    scheduler.coordinator.discard(["key"])
    assert scheduler.has_requests()
    work = work_of(scheduler.schedule())
    assert work is not None
    assert work.discards == ["key"]
    assert not scheduler.has_requests()


@BOTH
def test_a_request_that_fails_between_steps_is_reported(
    cls: type[StageSchedulerMixin], overlap: bool
) -> None:
    """Upstream reports nothing for a request that is ended from outside."""
    scheduler = make_scheduler(cls, async_scheduling=overlap)
    scheduler.add_request(make_request("a"))
    scheduler.fail_requests(["a"], StageStepError("broken"))
    assert scheduler.has_requests()
    (reported,) = step(scheduler)[1][0].outputs
    assert (reported.request_id, reported.finish_reason) == ("a", FinishReason.ERROR)
    assert scheduler.coordinator.take_events().errors["a"].message == "broken"


def _logprobs(token: int, value: float) -> LogprobsLists:
    """[2 requests, 1 + 0 alternatives]; the second row is as given."""
    return LogprobsLists(
        logprob_token_ids=np.array([[7], [token]]),
        logprobs=np.array([[-0.5], [value]], dtype=np.float32),
        sampled_token_ranks=np.array([1, 1]),
    )


@pytest.mark.parametrize(("token", "value"), [(8, -0.5), (7, math.nan)], ids=["token", "nan"])
def test_logprobs_that_break_the_contract_end_their_request_only(token: int, value: float) -> None:
    """Upstream would hand them on."""
    scheduler = make_scheduler(ARScheduler)
    for uid in "ab":
        request = make_request(uid)
        assert request.sampling_params is not None
        request.sampling_params.logprobs = 0
        scheduler.add_request(request)
    scheduled = scheduler.schedule()
    output = make_output(scheduled, 7, logprobs=_logprobs(token, value))
    reported = {o.request_id: o for o in scheduler.update_from_output(scheduled, output)[0].outputs}
    assert reported["a"].new_token_ids == [7]
    assert reported["b"].finish_reason is FinishReason.ERROR
    assert list(scheduler.requests) == ["a"]


def test_a_generation_input_that_fits_a_step_is_not_split() -> None:
    """Upstream fills the step with a part of the second."""
    counts = []
    for cls in (Scheduler, GenerationScheduler):
        scheduler = make_scheduler(cls, max_num_batched_tokens=16, enable_prefix_caching=False)
        for uid in "ab":
            scheduler.add_request(make_request(uid, 10, pooling=True))
        counts.append(scheduler.schedule().num_scheduled_tokens)
    assert counts == [{"a": 10, "b": 6}, {"a": 10}]


def test_a_generation_input_is_not_overtaken_by_a_smaller_one() -> None:
    scheduler = make_scheduler(GenerationScheduler, max_num_batched_tokens=16)
    for uid, length in (("a", 10), ("b", 10), ("c", 4)):
        scheduler.add_request(make_request(uid, length, pooling=True))
    steps = [
        step(scheduler, pooler_fn=lambda _uid: torch.ones(1))[0].num_scheduled_tokens
        for _ in range(2)
    ]
    assert steps == [{"a": 10}, {"b": 10, "c": 4}]


# --- streams --------------------------------------------------------------------------------------


def test_a_held_running_request_is_passed_over() -> None:
    """It keeps its place, its blocks and its seat."""
    scheduler = _starving()
    scheduler.add_request(make_request("b"))
    assert list(step(scheduler)[0].num_scheduled_tokens) == ["b"]
    assert list(step(scheduler)[0].num_scheduled_tokens) == ["b"]
    assert [request.request_id for request in scheduler.running] == ["a", "b"]
    assert scheduler.kv_cache_manager.get_block_ids("a") != ([],)


def test_a_preempted_held_request_leaves_the_queue() -> None:
    """Upstream puts it to the front, where it would be looked at in every step."""
    scheduler = make_scheduler(
        ARScheduler, enable_prefix_caching=False, block_size=4, num_blocks=7, max_model_len=64
    )
    scheduler.add_request(make_request("b", 8, max_tokens=14, block_size=4))
    _add_gated(scheduler, "a", stream=True)
    _plan(scheduler, "a", 7, last=False)
    while scheduler.requests["a"].num_preemptions == 0:
        step(scheduler)
    assert scheduler.get_request_counts() == (1, 0)
    assert list(step(scheduler)[0].num_scheduled_tokens) == ["b"]


def test_an_engine_that_can_schedule_nothing_sleeps() -> None:
    """The only seat belongs to a request that is passed over; upstream would step in vain."""
    scheduler = _starving(max_num_seqs=1)
    assert not scheduler.has_requests()
    scheduler.add_request(make_request("b"))
    assert scheduler.has_requests()
    assert step(scheduler)[0].num_scheduled_tokens == {}
    assert not scheduler.has_requests()
    assert scheduler.get_num_unfinished_requests() == 2
    scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    assert list(step(scheduler)[0].num_scheduled_tokens) == ["b"]


def test_a_generation_stream_runs_its_request_again() -> None:
    """Once per chunk; later ones at the end of the queue."""
    scheduler = make_scheduler(GenerationScheduler, max_num_batched_tokens=8)
    for uid, arrival in (("a", 1.0), ("b", 2.0)):
        _add_gated(scheduler, uid, arrival, stream=True)
    _plan(scheduler, "b", 5, last=False)
    steps = [_plan(scheduler, "a", 4, last=False), _plan(scheduler, "b", 6, last=False)]
    steps += [step(scheduler, pooler_fn=_pooled)[0] for _ in range(2)]
    assert [scheduled.num_scheduled_tokens for scheduled in steps] == [
        {"b": 5},
        {"a": 4},
        {"b": 6},
        {},
    ]
    assert list(scheduler.requests) == ["a", "b"]


# --- KV caches that leave -------------------------------------------------------------------------


def _handing_over(cls: type[ARMixin], overlap: bool) -> ARMixin:
    """A scheduler whose request "a", a prompt of 20 tokens, hands its cache over."""
    edge = OutEdge("cache", "", kv=KvTransfer("prefill_finished"))
    options = StageOptions("stage", ConnectorSpec("inproc", "run"), outputs=(edge,))
    scheduler = make_scheduler(cls, async_scheduling=overlap, options=options)
    scheduler.coordinator.expect("a", wait=None, edges=("cache",), params={}, num_prompt_tokens=20)
    scheduler.add_request(make_request("a", 20, max_tokens=50))
    return scheduler


def _ships(scheduled: SchedulerOutput) -> list[KvShip]:
    work = work_of(scheduled)
    return [] if work is None else work.ships


@BOTH
def test_a_request_whose_cache_leaves_is_passed_over_and_stops(
    cls: type[ARMixin], overlap: bool
) -> None:
    scheduler = _handing_over(cls, overlap)
    assert step(scheduler)[1][0].outputs[0].new_token_ids == [7]
    assert scheduler.has_requests()
    scheduled = scheduler.schedule()
    assert scheduled.num_scheduled_tokens == {}
    (ship,) = _ships(scheduled)
    assert (ship.length, ship.token_ids) == (20, (*range(1, 21), 7))
    ref = Ref("a", "cache", 0, True, key="key")
    news = StageNews(acks=[KvAck("a", ship.generation, ref)])
    outputs = scheduler.update_from_output(scheduled, with_news(make_output(scheduled), news))
    (out,) = outputs[0].outputs
    assert (out.new_token_ids, out.finish_reason) == ([], FinishReason.STOP)
    assert scheduler.coordinator.take_events().refs == [ref]


@BOTH
def test_the_blocks_of_a_cache_that_leaves_outlive_their_request(
    cls: type[ARMixin], overlap: bool
) -> None:
    scheduler = _handing_over(cls, overlap)
    pool = scheduler.kv_cache_manager.block_pool
    free = pool.get_num_free_blocks()
    step(scheduler)
    scheduled = scheduler.schedule()
    (ship,) = _ships(scheduled)
    scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    assert scheduler.requests == {}
    assert pool.get_num_free_blocks() == free - len(ship.block_ids[0]) == free - 2
    failed = KvAck("a", ship.generation, error=KVTransferError("broken").to_wire())
    output = with_news(make_output(scheduled), StageNews(acks=[failed]))
    scheduler.update_from_output(scheduled, output)
    assert pool.get_num_free_blocks() == free


# --- sessions -------------------------------------------------------------------------------------


@BOTH
def test_a_session_rests_outside_the_queues(cls: type[ARMixin], overlap: bool) -> None:
    """Upstream counts it among those that wait, and as one that runs, for its seat's sake."""
    scheduler = make_scheduler(cls, async_scheduling=overlap)
    _add_session(scheduler, "s", max_tokens=1)
    (out,) = step(scheduler)[1][0].outputs
    assert (out.new_token_ids, out.finish_reason) == ([7], None)
    assert scheduler.get_request_counts() == (0, 0)
    assert scheduler.num_waiting_for_streaming_input == 0
    assert scheduler.coordinator.take_events().segments == [SegmentEnd("s", 0, "length")]
    assert not scheduler.has_requests()


def test_a_session_that_rests_makes_room() -> None:
    scheduler = make_scheduler(
        ARScheduler, enable_prefix_caching=False, block_size=4, num_blocks=6, max_model_len=64
    )
    session = _add_session(scheduler, "s", 11, max_tokens=1, block_size=4)
    step(scheduler)
    scheduler.add_request(make_request("b", 12, block_size=4))
    steps = [step(scheduler)[0].num_scheduled_tokens for _ in range(2)]
    assert steps == [{}, {"b": 12}]
    assert session.num_computed_tokens == 0


@pytest.mark.parametrize(
    ("kind", "prompt"),
    [(UpdateKind.REPLACE, [70, 71]), (UpdateKind.WINDOW, [9, 10, 70, 71])],
)
def test_an_update_may_replace_the_prompt(kind: UpdateKind, prompt: list[int]) -> None:
    scheduler = make_scheduler(ARScheduler)
    session = _add_session(scheduler, "s", max_tokens=1)
    step(scheduler)
    update = PromptUpdate(kind, (70, 71), keep=2)
    scheduler.update_session("s", SessionUpdate(1, update))
    assert session.prompt_token_ids == prompt
    (new,) = step(scheduler)[0].scheduled_new_reqs
    assert (new.prompt_token_ids, new.num_computed_tokens) == (prompt, 0)


def test_a_segment_can_be_interrupted() -> None:
    """What is in flight of it is dropped; the session goes on."""
    scheduler = make_scheduler(AsyncARScheduler, async_scheduling=True)
    session = _add_session(scheduler, "s", max_tokens=9)
    scheduled = scheduler.schedule()
    output = make_output(scheduled, 7, scheduler=scheduler)
    assert scheduler.interrupt("s")
    scheduler.update_session("s", SessionUpdate(1, PromptUpdate(UpdateKind.EXTEND, (70,))))
    assert not any(g.outputs for g in scheduler.update_from_output(scheduled, output).values())
    assert scheduler.schedule().scheduled_new_reqs[0].prompt_token_ids == [*range(1, 11), 70]
    assert session.num_output_placeholders == 1
