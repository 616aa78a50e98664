"""Where the stage schedulers differ from upstream's on purpose: docs/differences.md names these."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import FinishReason
from vllm.v1.outputs import LogprobsLists

from antiphon.core.prompt_plan import PromptPlan
from antiphon.core.tickets import Arrived, StageNews
from antiphon.errors import StageStepError
from antiphon.sched.ar import ARScheduler, AsyncARScheduler
from antiphon.sched.coordinator import Wait
from antiphon.sched.generation import GenerationScheduler
from antiphon.sched.mixin import StageSchedulerMixin
from antiphon.upstream.envelopes import with_news, work_of
from factory import make_output, make_request, make_scheduler, step

BOTH = pytest.mark.parametrize(
    ("cls", "overlap"), [(ARScheduler, False), (AsyncARScheduler, True)], ids=["sync", "async"]
)


def _add_gated(scheduler: StageSchedulerMixin, uid: str, arrival: float = 0.0) -> None:
    scheduler.coordinator.expect(
        uid, wait=Wait("edge", 0.0), edges=(), params={}, num_prompt_tokens=1
    )
    scheduler.add_request(make_request(uid, 1, arrival_time=arrival))


def _plan(scheduler: StageSchedulerMixin, uid: str, num_tokens: int) -> SchedulerOutput:
    """One step in which the worker answers with the prompt of a gated request."""
    scheduled = scheduler.schedule()
    plan = PromptPlan(tuple(range(1, num_tokens + 1)))
    answer = with_news(
        make_output(scheduled, scheduler=scheduler), StageNews([Arrived(uid, "key", True, plan)])
    )
    scheduler.update_from_output(scheduled, answer)
    return scheduled


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
