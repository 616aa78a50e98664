"""The scheduler of generation stages: one forward per input."""

from __future__ import annotations

from typing import Any

import pytest
from sched_engine import OUT, Stage, plan
from vllm.v1.engine import FinishReason

from antiphon.core.options import ConnectorSpec, StageOptions
from antiphon.core.tickets import Ended
from antiphon.errors import InputTooLongError
from antiphon.sched.generation import GenerationScheduler

ATOMIC = StageOptions("code2wav", ConnectorSpec("inproc", "run"), atomic_inputs=True)


def make_stage(budget: int = 16, options: StageOptions | None = None, **kw: Any) -> Stage:
    stage = Stage(GenerationScheduler, max_num_batched_tokens=budget, **kw)
    stage.pools = True
    stage.scheduler.options = options
    return stage


def batches(stage: Stage) -> list[dict[str, int]]:
    """Tokens per request, step by step, until everything is done."""
    found = []
    while stage.has_work:
        done = stage.step()
        if done.scheduled is not None and done.scheduled.num_scheduled_tokens:
            found.append(dict(done.scheduled.num_scheduled_tokens))
    stage.check_empty()
    return found


def test_an_input_goes_into_one_step_and_its_output_ends_it() -> None:
    stage = make_stage()
    stage.submit("a", n=16, pooling=True)
    assert batches(stage) == [{"a": 16}]
    assert stage.ends("a") == [FinishReason.STOP]


def test_inputs_that_fit_share_a_step() -> None:
    stage = make_stage()
    for uid, n in (("a", 5), ("b", 6), ("c", 5)):
        stage.submit(uid, n=n, pooling=True)
    assert batches(stage) == [{"a": 5, "b": 6, "c": 5}]


def test_an_input_that_does_not_fit_waits_whole_and_is_not_overtaken() -> None:
    """First come, first served: the small one behind it would fit, but waits too."""
    stage = make_stage()
    for uid, n in (("a", 10), ("b", 10), ("c", 3)):
        stage.submit(uid, n=n, pooling=True)
    assert batches(stage) == [{"a": 10}, {"b": 10, "c": 3}]


def test_an_input_over_the_budget_is_chunked() -> None:
    stage = make_stage()
    stage.submit("a", n=40, pooling=True)
    assert batches(stage) == [{"a": 16}, {"a": 16}, {"a": 8}]


def test_a_chunked_input_leaves_its_last_steps_rest_to_the_next() -> None:
    stage = make_stage()
    stage.submit("a", n=20, pooling=True)
    stage.submit("b", n=12, pooling=True)
    stage.submit("c", n=12, pooling=True)
    assert batches(stage) == [{"a": 16}, {"a": 4, "b": 12}, {"c": 12}]


def test_a_chunked_input_does_not_overtake_either() -> None:
    stage = make_stage()
    for uid, n in (("a", 10), ("b", 10), ("c", 40)):
        stage.submit(uid, n=n, pooling=True)
    assert batches(stage) == [{"a": 10}, {"b": 10, "c": 6}, {"c": 16}, {"c": 16}, {"c": 2}]


def test_more_requests_than_the_batch_takes_are_queued() -> None:
    """C116."""
    stage = make_stage(max_num_seqs=2)
    for number in range(5):
        stage.submit(f"r{number}", n=4, pooling=True)
    assert [sorted(batch) for batch in batches(stage)] == [["r0", "r1"], ["r2", "r3"], ["r4"]]


def test_completed_requests_leave_nothing_that_blocks_later_ones() -> None:
    """C62."""
    stage = make_stage(max_num_seqs=4)
    for number in range(20):
        stage.submit(f"r{number}", n=4, pooling=True)
        stage.drain()
    stage.check_empty()


def test_gated_inputs_keep_their_order() -> None:
    stage = make_stage()
    for uid in "abc":
        stage.submit(uid, gated=True, pooling=True, edges=(OUT,))
    stage.deliver("c", plan(*[1] * 10))
    stage.deliver("a", plan(*[1] * 10))
    stage.deliver("b", plan(*[1] * 3))
    assert batches(stage) == [{"a": 10, "b": 3}, {"c": 10}]
    ended = [e for work in stage.works for e in work.ended]
    assert ended == [Ended("a", True, 10), Ended("b", True, 3), Ended("c", True, 10)]


def test_an_input_may_fill_the_models_length() -> None:
    """Nothing is sampled, so no room is kept for it."""
    stage = make_stage(2048)
    stage.submit("a", gated=True, pooling=True)
    stage.deliver("a", plan(*[1] * 1024))
    assert batches(stage) == [{"a": 1024}]


@pytest.mark.parametrize(("options", "length"), [(None, 1025), (None, 1024), (ATOMIC, 17)])
def test_an_input_that_is_too_long_ends_with_a_typed_error(
    options: StageOptions | None, length: int
) -> None:
    """C59: never a quiet stop, never a hang. Over the model's length, or all of it but in several
    steps; over the budget if it is atomic.
    """
    stage = make_stage(options=options)
    stage.submit("bad", gated=True, pooling=True)
    stage.submit("good", gated=True, pooling=True)
    stage.deliver("bad", plan(*[1] * length))
    stage.deliver("good", plan(1, 2))
    assert batches(stage) == [{"good": 2}]
    assert stage.ends("bad") == [FinishReason.ERROR]
    assert stage.error_code("bad") == InputTooLongError.code
    error = stage.outcomes["bad"].error
    assert error is not None
    assert str(length) in error.message


def test_an_input_in_several_steps_may_be_one_token_shorter_than_the_model() -> None:
    stage = make_stage()
    stage.submit("a", gated=True, pooling=True)
    stage.deliver("a", plan(*[1] * 1023))
    assert sum(batch["a"] for batch in batches(stage)) == 1023


def test_an_atomic_input_of_exactly_the_budget_is_served() -> None:
    stage = make_stage(options=ATOMIC)
    stage.submit("a", gated=True, pooling=True)
    stage.deliver("a", plan(*[1] * 16))
    assert batches(stage) == [{"a": 16}]


def test_a_submitted_input_is_judged_the_same_way() -> None:
    """C59: the host asks before it adds the request."""
    stage = make_stage(options=ATOMIC)
    assert stage.scheduler.prompt_error(16) is None
    assert isinstance(stage.scheduler.prompt_error(17), InputTooLongError)
    assert make_stage().scheduler.prompt_error(17) is None


def test_a_chunked_input_can_be_aborted_half_way() -> None:
    """C1."""
    stage = make_stage()
    stage.submit("a", n=40, pooling=True)
    stage.submit("b", n=10, pooling=True)
    stage.step()
    stage.abort("a")
    assert batches(stage) == [{"b": 10}]
