"""Requests that a stage cannot serve: too large for its cache, or not to be computed again."""

from __future__ import annotations

import pytest
from sched_engine import OUT, Stage, plan
from vllm.v1.engine import FinishReason

from antiphon.core.options import Preemption
from antiphon.errors import InputTooLongError, PreemptedError
from antiphon.sched.ar import ARScheduler, AsyncARScheduler

BOTH = pytest.mark.parametrize("cls", [ARScheduler, AsyncARScheduler], ids=["sync", "async"])


def test_a_prompt_that_no_cache_could_hold_is_refused_at_once() -> None:
    """C13: 63 blocks of 49; the others go on."""
    stage = Stage(num_blocks=50, max_model_len=1024)
    error = stage.scheduler.prompt_error(63 * 16 - 1)
    assert isinstance(error, InputTooLongError)
    assert "63 cache blocks, the stage has 49" in str(error)
    assert stage.scheduler.prompt_error(49 * 16 - 1) is None


def test_a_planned_prompt_that_no_cache_could_hold_ends_its_request_only() -> None:
    """C13, with the prompt coming from another stage."""
    stage = Stage(num_blocks=50, max_model_len=1024)
    stage.submit("large", gated=True)
    stage.submit("small", max_tokens=3)
    stage.deliver("large", plan(*[1] * (63 * 16 - 1)))
    stage.drain()
    assert stage.error_code("large") == InputTooLongError.code
    assert stage.ends("small") == [FinishReason.LENGTH]
    stage.check_empty()


@BOTH
def test_where_nothing_is_recomputed_a_preempted_request_fails(cls: type[ARScheduler]) -> None:
    """C37, C8: the victim ends with one typed error, its batch-mates finish."""
    stage = Stage(cls, preemption=Preemption.FAIL, num_blocks=8, max_num_seqs=4)
    for uid in "abc":
        stage.submit(uid, 20, max_tokens=60, edges=(OUT,))
    stage.drain()
    ends = {uid: stage.ends(uid) for uid in "abc"}
    failed = [uid for uid in "abc" if ends[uid] == [FinishReason.ERROR]]
    assert failed
    assert all(stage.error_code(uid) == PreemptedError.code for uid in failed)
    assert all(ends[uid] == [FinishReason.LENGTH] for uid in set("abc") - set(failed))
    assert stage.ends("a") == [FinishReason.LENGTH]
    stage.check_empty()


@BOTH
def test_elsewhere_it_is_computed_again(cls: type[ARScheduler]) -> None:
    """The negative control: C34, C36, the same load finishes for everybody."""
    stage = Stage(cls, num_blocks=8, max_num_seqs=4)
    for uid in "abc":
        stage.submit(uid, 20, max_tokens=60)
    stage.drain()
    assert all(stage.ends(uid) == [FinishReason.LENGTH] for uid in "abc")
    stage.check_empty()
