"""Who holds seats and blocks while nothing of it runs, and who gets them."""

from __future__ import annotations

from typing import Any

import pytest
from sched_core import sampled
from sched_engine import Stage, plan
from sched_worker import OUT, Given
from vllm.v1.engine import FinishReason

from antiphon.core.budget import EdgeLimits
from antiphon.core.options import Preemption
from antiphon.errors import PreemptedError, StageStepError
from antiphon.sched.ar import ARScheduler, AsyncARScheduler

BOTH = pytest.mark.parametrize("cls", [ARScheduler, AsyncARScheduler], ids=["sync", "async"])

TWO = EdgeLimits(request_chunks=2)


def full(cls: type[ARScheduler] = ARScheduler) -> Stage:
    """Request "a" has filled its edge and the only seat, and nothing else is to be done."""
    stage = Stage(cls, limits=TWO, max_num_seqs=1)
    stage.submit("a", max_tokens=30, edges=(OUT,))
    stage.drain()
    return stage


def crowded(cls: type[ARScheduler], **kw: Any) -> Stage:
    """`a` has filled its edge and is last in the running order; `b` needs blocks."""
    stage = Stage(cls, limits=TWO, block_size=4, num_blocks=7, max_model_len=64, **kw)
    stage.submit("b", 8, max_tokens=14)
    stage.submit("a", 7, max_tokens=8, edges=(OUT,))
    while stage.scheduler.requests["a"].num_preemptions == 0:
        stage.step()
    return stage


@BOTH
def test_a_parked_producer_can_be_preempted_and_resumes(cls: type[ARScheduler]) -> None:
    stage = crowded(cls)
    assert list(stage.scheduler.waiting) == []
    stage.drain()
    assert stage.ends("b") == [FinishReason.LENGTH]
    assert stage.ends("a") == []
    for _ in range(9):
        stage.consume()
        stage.drain()
    assert stage.outcomes["a"].tokens == stage.updates("a") == sampled("a", 7, 8)
    stage.check_empty()


@BOTH
def test_a_released_producer_may_have_to_wait_for_blocks(cls: type[ARScheduler]) -> None:
    stage = crowded(cls)
    stage.consume()
    assert [r.request_id for r in stage.scheduler.waiting] == ["a"]
    stage.drain()
    for _ in range(9):
        stage.consume()
        stage.drain()
    assert stage.outcomes["a"].tokens == sampled("a", 7, 8)
    stage.check_empty()


@BOTH
def test_those_that_wait_for_a_parked_requests_seat_cost_no_step(cls: type[ARScheduler]) -> None:
    """The engine sleeps until there is room, and nothing is forgotten then."""
    stage = full(cls)
    stage.submit("b", max_tokens=2)
    stage.drain(5)
    assert not stage.has_work
    assert stage.ends("b") == []
    stage.submit("c", max_tokens=2)
    stage.drain(5)
    for _ in range(30):
        stage.consume()
        stage.drain()
    assert stage.ends("a") == stage.ends("b") == stage.ends("c") == [FinishReason.LENGTH]
    stage.check_empty()


@BOTH
@pytest.mark.parametrize("how", ["abort", "fail", "cache"])
def test_a_seat_that_becomes_free_wakes_the_engine(cls: type[ARScheduler], how: str) -> None:
    stage = full(cls)
    stage.submit("b", max_tokens=2)
    stage.drain(5)
    if how == "abort":
        stage.abort("a")
    elif how == "fail":
        stage.scheduler.fail_requests(["a"], StageStepError("broken"))
    else:
        stage.scheduler.reset_prefix_cache(True)
    stage.drain()
    assert stage.ends("b") == [FinishReason.LENGTH]


@BOTH
def test_a_preempted_request_is_not_locked_out_by_parked_ones(cls: type[ARScheduler]) -> None:
    """C119: the consumer of the parked one may wait for a seat that the preempted one's has."""
    stage = Stage(cls, limits=TWO, block_size=4, num_blocks=8, max_model_len=64)
    stage.submit("old", 12, max_tokens=9, edges=(OUT,))
    stage.submit("young", 10, max_tokens=9, edges=(OUT,))
    stage.drain()
    for _ in range(40):  # a consumer that serves "young" first
        if stage.ends("young"):
            break
        stage.consume(uid="young")
        stage.drain()
    assert stage.ends("young") == [FinishReason.LENGTH]
    for _ in range(20):
        stage.consume()
        stage.drain()
    assert stage.outcomes["old"].tokens == sampled("old", 12, 9)
    assert stage.outcomes["young"].tokens == sampled("young", 10, 9)
    stage.check_empty()


def test_a_new_request_does_not_push_out_a_parked_one() -> None:
    """It can wait: none of its chunks is needed by anybody yet."""
    stage = full()
    stage.submit("b", max_tokens=2)
    stage.drain(5)
    assert stage.scheduler.requests["a"].num_preemptions == 0


@BOTH
def test_a_session_that_rests_gives_its_blocks_to_those_that_need_them(
    cls: type[ARScheduler],
) -> None:
    """C119: nobody can know how long it rests. It computes its history again when it goes on."""
    stage = Stage(cls, block_size=4, num_blocks=8, max_model_len=64)
    stage.submit("s", 16, session=True, max_tokens=3)
    stage.drain()
    stage.submit("b", 12, max_tokens=4)
    stage.drain()
    assert stage.ends("b") == [FinishReason.LENGTH]
    stage.update("s", 1, 90)
    stage.drain()
    assert stage.outcomes["s"].by_epoch[1] == sampled("s", 19, 3)


@BOTH
def test_a_step_that_only_preempts_is_followed_by_another(cls: type[ARScheduler]) -> None:
    """C119: the engine must not sleep over what that step has freed."""
    stage = Stage(cls, block_size=4, num_blocks=9, max_num_seqs=2, max_model_len=32)
    stage.submit("s", 6, session=True, max_tokens=2)
    stage.submit("a", stream=True, max_tokens=3)
    stage.deliver("a", plan(*range(1, 7)), seq=0, end=False)
    stage.drain()
    stage.submit("b", 8, max_tokens=12)
    stage.step()
    stage.update("s", 1, 90)  # there is no seat for it
    stage.drain()
    assert stage.preemptions
    assert stage.outcomes["s"].by_epoch[1] == sampled("s", 8, 2)
    assert stage.ends("b") == [FinishReason.LENGTH]


@BOTH
def test_a_session_keeps_its_blocks_while_there_are_others(cls: type[ARScheduler]) -> None:
    stage = Stage(cls, block_size=4, num_blocks=40, max_num_seqs=1)
    stage.submit("s", 16, session=True, max_tokens=3)
    stage.drain()
    held = stage.scheduler.kv_cache_manager.get_block_ids("s")
    for number in range(4):
        stage.submit(f"b{number}", 12, max_tokens=4)
    stage.drain()
    assert stage.scheduler.kv_cache_manager.get_block_ids("s") == held


# --- what lies in blocks is lost ------------------------------------------------------------------


def holding(cls: type[ARScheduler], **kw: Any) -> Stage:
    """Nothing runs: "s" rests, "a" lacks a row, "p" has filled its edge, "q" is a segment that
    waits for room.
    """
    stage = Stage(cls, limits=TWO, block_size=4, num_blocks=60, **kw)
    stage.submit("s", 9, session=True, max_tokens=3)
    stage.submit("a", stream=True, max_tokens=9)
    stage.deliver("a", Given(plan(*range(1, 7)), 2), seq=0, end=False)
    stage.submit("p", 9, max_tokens=9, edges=(OUT,))
    stage.submit("q", 9, session=True, max_tokens=2 + stage.depth, edges=(OUT,))
    stage.update("q", 1, 90)
    stage.drain()
    return stage


@BOTH
def test_blocks_are_given_up_before_a_sleep(cls: type[ARScheduler]) -> None:
    """Whoever holds some computes again what was in them: nothing else changes."""
    stage = holding(cls)
    assert all(stage.scheduler.kv_cache_manager.get_block_ids(uid)[0] for uid in "sapq")
    stage.scheduler.give_up_blocks()
    stage.check()
    assert stage.held_blocks() == 0
    assert stage.scheduler.reset_prefix_cache(True)
    assert not stage.has_work
    stage.deliver("a", 9, seq=1)
    stage.update("s", 1, 90)
    for _ in range(9):
        stage.drain()
        stage.consume()
    assert stage.outcomes["a"].tokens == sampled("a", 6, 9)
    assert stage.outcomes["p"].tokens == stage.updates("p") == sampled("p", 9, 9)
    assert stage.outcomes["s"].by_epoch[1] == sampled("s", 9 + 2 + 1, 3)
    length = 9 + 1 + stage.depth + 1
    assert stage.outcomes["q"].by_epoch[1] == sampled("q", length, 2 + stage.depth)
    stage.abort("s", "q")
    stage.drain()
    stage.check_empty()


@BOTH
def test_what_is_queued_and_holds_blocks_gives_them_up_as_well(cls: type[ARScheduler]) -> None:
    stage = Stage(cls, limits=TWO, max_num_seqs=1, block_size=4)
    stage.submit("q", 9, session=True, max_tokens=2)
    stage.drain()
    stage.submit("p", 9, max_tokens=9, edges=(OUT,))
    stage.drain()
    stage.update("q", 1, 90)
    stage.drain()
    assert list(stage.scheduler.kv_holding_waiting)
    stage.scheduler.give_up_blocks()
    assert stage.held_blocks() == 0
    stage.drain()
    assert stage.outcomes["q"].by_epoch[1] == sampled("q", 9 + 1 + 1, 2)


@BOTH
def test_where_nothing_is_recomputed_those_that_lose_blocks_fail(cls: type[ARScheduler]) -> None:
    stage = holding(cls, preemption=Preemption.FAIL)
    stage.scheduler.give_up_blocks()
    stage.drain()
    for uid in "sapq":
        assert stage.ends(uid) == [FinishReason.ERROR]
        assert stage.error_code(uid) == PreemptedError.code
    stage.check_empty()


@BOTH
def test_where_nothing_is_recomputed_no_room_is_made(cls: type[ARScheduler]) -> None:
    stage = Stage(cls, preemption=Preemption.FAIL, block_size=4, num_blocks=8, max_model_len=64)
    stage.submit("s", 16, session=True, max_tokens=3)
    stage.drain()
    stage.submit("b", 12, max_tokens=4)
    stage.drain()
    assert stage.ends("s") == stage.ends("b") == []
    stage.abort("s")
    stage.drain()
    assert stage.ends("b") == [FinishReason.LENGTH]
    stage.check_empty()
