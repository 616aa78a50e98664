"""Behaviour of the data classes between scheduler, worker and engine that the seams rely on."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, fields

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import (
    EMPTY_MODEL_RUNNER_OUTPUT,
    ModelRunnerOutput,
    make_empty_encoder_model_runner_output,
)

from factory import make_output, make_request, make_scheduler


@dataclass
class MoreScheduled(SchedulerOutput):
    """A scheduler output with one more field."""

    extra: str = ""


@dataclass
class MoreOutput(ModelRunnerOutput):
    """A runner output with one more field."""

    extra: str = ""


def test_the_empty_output_is_one_shared_object() -> None:
    """Whoever adds to it must copy it first: it would stay in every later empty step."""
    empty = make_empty_encoder_model_runner_output(SchedulerOutput.make_empty())
    assert empty is EMPTY_MODEL_RUNNER_OUTPUT


def test_a_scheduler_output_can_be_rebuilt_from_its_variables() -> None:
    """`vars` holds exactly the constructor's arguments, none set later."""
    scheduler = make_scheduler(Scheduler)
    scheduler.add_request(make_request("a"))
    base = scheduler.schedule()
    more = MoreScheduled(**vars(base), extra="x")
    assert all(getattr(more, f.name) is getattr(base, f.name) for f in fields(base))


def test_subclasses_pass_through_the_scheduler() -> None:
    scheduler = make_scheduler(Scheduler)
    scheduler.add_request(make_request("a"))
    scheduled = MoreScheduled(**vars(scheduler.schedule()), extra="x")
    output = make_output(scheduled, 7, cls=MoreOutput, extra="y")
    (reported,) = scheduler.update_from_output(scheduled, output)[0].outputs
    assert reported.new_token_ids == [7]


def test_subclasses_survive_the_way_to_another_process() -> None:
    scheduler = make_scheduler(Scheduler)
    scheduler.add_request(make_request("a"))
    scheduled = MoreScheduled(**vars(scheduler.schedule()), extra="x")
    output = make_output(scheduled, 7, cls=MoreOutput, extra="y")
    there = pickle.loads(pickle.dumps((scheduled, output)))  # noqa: S301  our own bytes
    assert [part.extra for part in there] == ["x", "y"]


def test_a_request_shows_its_tokens_through_views_of_one_list() -> None:
    """So the prompt must be replaced in place; a new list would not be seen."""
    request = make_request("a", 40)
    request._all_token_ids[:] = [5] * 20
    assert list(request.all_token_ids) == [5] * 20
    assert request.num_tokens == 20


def test_block_hashes_are_only_appended_to() -> None:
    """A replaced prompt keeps the old prompt's hashes unless they are cleared first."""
    request = make_request("a", 40)
    stale = list(request.block_hashes)
    request._all_token_ids[:] = [5] * 40
    request.update_block_hashes()
    assert request.block_hashes == stale
    request.block_hashes.clear()
    request.update_block_hashes()
    assert len(request.block_hashes) == 2
    assert request.block_hashes != stale


def test_the_salt_keeps_equal_prompts_apart_in_the_prefix_cache() -> None:
    """The same placeholder ids with other conditioning must not share blocks."""
    plain, salted = make_request("a", 40), make_request("b", 40, cache_salt="c")
    assert plain.block_hashes
    assert not set(plain.block_hashes) & set(salted.block_hashes)
