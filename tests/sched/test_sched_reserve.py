"""Stages that reserve a request's worst case: nothing is ever preempted there (C34, C37)."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sched_core import sampled
from sched_engine import OUT, Stage, plan
from sched_kv import KvStage
from sched_worker import Given
from vllm.v1.engine import FinishReason

from antiphon.core.budget import EdgeLimits
from antiphon.core.kv_handoff import KvTransfer
from antiphon.core.options import Preemption
from antiphon.core.prompt_plan import UpdateKind
from antiphon.errors import InputTooLongError, PreemptedError, StageStepError
from antiphon.sched.ar import ARScheduler, AsyncARScheduler

BOTH = pytest.mark.parametrize("cls", [ARScheduler, AsyncARScheduler], ids=["sync", "async"])
Load = list[tuple[int, int, int]]  # prompt, max_tokens, steps before the next one arrives


def reserving(cls: type[ARScheduler] = ARScheduler, **kw: Any) -> Stage:
    """Ten blocks of four tokens."""
    kw = {"block_size": 4, "num_blocks": 11, "max_num_seqs": 8, "max_model_len": 40} | kw
    return Stage(cls, preemption=Preemption.RESERVE, **kw)


def promised(stage: Stage) -> int:
    assert stage.scheduler.reservations is not None
    return stage.scheduler.reservations.reserved


def in_line(stage: Stage) -> list[str]:
    assert stage.scheduler.reservations is not None
    return stage.scheduler.reservations.waiting()


def running(stage: Stage) -> list[str]:
    return [request.request_id for request in stage.scheduler.running]


# --- who is let in --------------------------------------------------------------------------------


@BOTH
def test_a_request_waits_until_its_worst_case_fits(cls: type[ARScheduler]) -> None:
    """C34: "c" needs two blocks now and six in the end, of which four are free."""
    stage = reserving(cls)
    stage.submit("a", 5, max_tokens=7)
    stage.submit("b", 5, max_tokens=7)
    stage.submit("c", 5, max_tokens=19)
    stage.step()
    assert running(stage) == ["a", "b"]
    assert promised(stage) == 6
    assert in_line(stage) == ["c"]
    assert stage.scheduler.kv_cache_manager.get_block_ids("c") == ([],)
    stage.drain()
    assert stage.outcomes["c"].tokens == sampled("c", 5, 19)
    assert stage.preemptions == 0
    stage.check_empty()
    assert promised(stage) == 0


@BOTH
def test_nobody_overtakes_the_first_in_line(cls: type[ARScheduler]) -> None:
    """C37: "small" would fit, and "large" would starve."""
    stage = reserving(cls)
    stage.submit("a", 8, max_tokens=16)
    stage.submit("large", 8, max_tokens=24)
    stage.submit("small", 2, max_tokens=2)
    stage.until(lambda: stage.ends("a"))
    assert stage.outcomes["small"].tokens == []
    stage.drain()
    assert stage.scheduler.requests == {}
    stage.check_empty()


@BOTH
def test_those_in_line_cost_no_step(cls: type[ARScheduler]) -> None:
    """While "a" waits for a consumer, nothing can be done for "b": the engine sleeps."""
    stage = reserving(cls, limits=EdgeLimits(request_chunks=2))
    stage.submit("a", 8, max_tokens=20, edges=(OUT,))
    stage.submit("b", 8, max_tokens=20)
    stage.drain(20)
    assert not stage.has_work
    assert in_line(stage) == ["b"]
    assert list(stage.scheduler.waiting) == []
    for _ in range(30):
        stage.consume()
        stage.drain()
    assert stage.ends("a") == stage.ends("b") == [FinishReason.LENGTH]
    stage.check_empty()


@BOTH
def test_a_seat_is_waited_for_without_blocks(cls: type[ARScheduler]) -> None:
    """What is reserved for one that has no seat would only be kept from others."""
    stage = reserving(cls, max_num_seqs=1)
    stage.submit("a", 4, max_tokens=4)
    stage.submit("b", 4, max_tokens=4)
    stage.step()
    assert promised(stage) == 2
    stage.drain()
    assert stage.ends("a") == stage.ends("b") == [FinishReason.LENGTH]
    stage.check_empty()


@BOTH
@pytest.mark.parametrize("how", ["abort", "fail", "abort in line"])
def test_a_reservation_is_freed_once(cls: type[ARScheduler], how: str) -> None:
    """I2, C1: however it ends; what is ended together with the one behind it is not let in."""
    stage = reserving(cls)
    for uid in "abc":
        stage.submit(uid, 8, max_tokens=20)
    stage.step()
    assert (running(stage), in_line(stage)) == (["a"], ["b", "c"])
    if how == "abort":
        stage.abort("a", "b")
        stage.abort("a")
    elif how == "fail":
        stage.scheduler.fail_requests(["a", "b"], StageStepError("broken"))
    else:
        stage.abort("b")
        assert in_line(stage) == ["c"]
    stage.drain()
    assert stage.ends("c") == [FinishReason.LENGTH]
    stage.check_empty()
    assert promised(stage) == 0


@BOTH
def test_a_gated_request_lines_up_with_its_real_prompt(cls: type[ARScheduler]) -> None:
    """Its placeholder is one token. It takes the place of its arrival: before "b"."""
    stage = reserving(cls)
    stage.submit("gated", gated=True, max_tokens=10)
    stage.submit("a", 8, max_tokens=12)
    stage.submit("b", 8, max_tokens=20)
    stage.step()
    assert promised(stage) == 5
    assert in_line(stage) == ["b"]
    stage.deliver("gated", plan(*range(1, 15)))
    stage.until(lambda: "gated" in in_line(stage))
    assert in_line(stage) == ["gated", "b"]  # six blocks
    stage.drain()
    assert stage.outcomes["gated"].tokens == sampled("gated", 14, 10)
    assert stage.preemptions == 0
    stage.check_empty()


@BOTH
def test_a_stream_that_waits_for_rows_keeps_what_it_was_promised(cls: type[ARScheduler]) -> None:
    stage = reserving(cls)
    stage.submit("s", stream=True, max_tokens=12)
    stage.deliver("s", Given(plan(1, 2, 3, 4), 2), seq=0, end=False)
    stage.until(lambda: running(stage))
    stage.submit("b", 4, max_tokens=30)
    stage.drain(30)
    assert promised(stage) == 4
    assert in_line(stage) == ["b"]
    stage.deliver("s", 20, seq=1)
    stage.drain()
    assert stage.outcomes["s"].tokens == sampled("s", 4, 12)
    assert stage.ends("b") == [FinishReason.LENGTH]
    assert stage.preemptions == 0
    stage.check_empty()


def test_priority_decides_the_line_where_it_decides_the_queue() -> None:
    stage = reserving(policy="priority")
    stage.submit("a", 8, max_tokens=30)
    stage.step()
    stage.submit("low", 8, max_tokens=30, priority=5)
    stage.submit("high", 8, max_tokens=30, priority=1)
    assert in_line(stage) == ["high", "low"]
    stage.drain()
    stage.check_empty()


# --- what is counted ------------------------------------------------------------------------------


def test_a_session_is_promised_the_models_length() -> None:
    """It may grow to it; while it rests nobody else gets its blocks."""
    stage = reserving(num_blocks=16)
    stage.submit("s", 4, session=True, max_tokens=2)
    stage.drain()
    assert promised(stage) == 10
    stage.submit("b", 8, max_tokens=20)
    stage.drain()
    assert stage.ends("b") == []
    for epoch in range(1, 5):
        stage.update("s", epoch, *range(40, 46))
        stage.drain()
    assert len(stage.outcomes["s"].by_epoch[4]) == 2
    stage.abort("s")
    stage.drain()
    assert stage.ends("b") == [FinishReason.LENGTH]
    assert stage.preemptions == 0
    stage.check_empty()


@BOTH
def test_a_session_that_is_interrupted_in_line_rests_without_blocks(cls: type[ARScheduler]) -> None:
    stage = reserving(cls, num_blocks=14)
    stage.submit("a", 8, max_tokens=30)
    stage.submit("s", 4, session=True, max_tokens=2)
    stage.step()
    assert in_line(stage) == ["s"]
    assert stage.interrupt("s")
    stage.until(lambda: stage.ends("a"))
    stage.drain()
    assert promised(stage) == 0
    stage.update("s", 1, 7, 8, kind=UpdateKind.REPLACE)
    stage.drain()
    assert stage.outcomes["s"].by_epoch[1] == sampled("s", 2, 2)
    stage.abort("s")
    stage.drain()
    stage.check_empty()


@BOTH
def test_what_is_handed_over_is_counted_until_it_has_left(cls: type[ARScheduler]) -> None:
    """The request has ended, and its blocks are held still: "b" must not count on them."""
    stage = KvStage(
        cls,
        KvTransfer("request_finished"),
        preemption=Preemption.RESERVE,
        block_size=4,
        num_blocks=11,
        max_model_len=40,
    )
    stage.answer = "keep"
    stage.submit("a", 10, max_tokens=20)
    stage.until(lambda: stage.ends("a") and stage.ships)
    held = stage.scheduler.handoffs.num_held("a")
    assert held == 8  # all but the last token's
    assert promised(stage) == held
    stage.submit("b", 8, max_tokens=8, hands_over=False)
    stage.drain()
    assert stage.ends("b") == []
    stage.ack(stage.ships[0])
    stage.drain()
    assert stage.ends("b") == [FinishReason.LENGTH]
    assert (stage.preemptions, promised(stage)) == (0, 0)


def test_every_kv_group_is_counted() -> None:
    """C12: half of the layers have a window, whose blocks are used again."""
    full, both = reserving(num_blocks=40), reserving(num_blocks=40, window=8)
    for stage in (full, both):
        stage.submit("a", 8, max_tokens=12)
        stage.step()
    assert promised(full) == 5
    assert promised(both) == 10
    for stage in (full, both):
        stage.drain()
        stage.check_empty()


@pytest.mark.parametrize("session", [False, True])
def test_one_that_never_fits_is_refused_at_once(session: bool) -> None:
    """C13: a typed error that says what to do."""
    stage = reserving(max_model_len=64)
    scheduler = stage.scheduler
    assert scheduler.size_error(8, 32) is None
    error = scheduler.size_error(8, 33, session=session)
    assert isinstance(error, InputTooLongError)
    assert f"may need {16 if session else 11} cache blocks, the stage has 10" in str(error)


def test_a_plan_that_never_fits_ends_its_request_only() -> None:
    """C13, with the prompt coming from another stage."""
    stage = reserving(max_model_len=64)
    stage.submit("large", gated=True, max_tokens=30)
    stage.submit("small", max_tokens=3)
    stage.deliver("large", plan(*[1] * 20))
    stage.drain()
    assert stage.error_code("large") == InputTooLongError.code
    assert stage.ends("small") == [FinishReason.LENGTH]
    stage.check_empty()


@BOTH
def test_what_a_sleep_takes_cannot_be_computed_again(cls: type[ARScheduler]) -> None:
    """C123, C37: one that holds blocks ends with an error; one in line has nothing to lose."""
    stage = reserving(cls, limits=EdgeLimits(request_chunks=2))
    stage.submit("a", 8, max_tokens=20, edges=(OUT,))
    stage.submit("b", 8, max_tokens=20)
    stage.drain()
    stage.scheduler.give_up_blocks()
    stage.drain()
    assert stage.error_code("a") == PreemptedError.code
    assert "sleep" in stage.outcomes["a"].error.message  # type: ignore[union-attr]
    assert stage.ends("b") == [FinishReason.LENGTH]
    stage.consume()
    stage.check_empty()


# --- any load -------------------------------------------------------------------------------------


def serve(stage: Stage, load: Load) -> None:
    """All of the load; every request must bring what the imaginary model samples for it."""
    for index, (length, max_tokens, steps) in enumerate(load):
        uid = f"r{index}"
        if index % 3 == 2:
            stage.submit(uid, gated=True, max_tokens=max_tokens)
            stage.deliver(uid, plan(*range(1, length + 1)))
        else:
            stage.submit(uid, length, max_tokens=max_tokens)
        for _ in range(steps):
            stage.step()
    stage.drain(3000)
    for index, (length, max_tokens, _) in enumerate(load):
        assert stage.outcomes[f"r{index}"].tokens == sampled(f"r{index}", length, max_tokens)
    stage.check_empty()


def a_stage(cls: type[ARScheduler], policy: Preemption, **kw: Any) -> Stage:
    kw = {"block_size": 4, "num_blocks": 11, "max_model_len": 40} | kw
    return Stage(cls, preemption=policy, max_num_seqs=6, max_num_batched_tokens=16, **kw)


@BOTH
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    load=st.lists(
        st.tuples(st.integers(1, 20), st.integers(1, 20), st.integers(0, 3)), min_size=3, max_size=9
    ),
    caching=st.booleans(),
    window=st.sampled_from([0, 8]),
)
def test_no_load_preempts_anything(
    cls: type[ARScheduler], load: Load, caching: bool, window: int
) -> None:
    """C34, C37, C117: chunked prompts, shared prefixes, windows, one or two steps in flight."""
    stage = a_stage(
        cls,
        Preemption.RESERVE,
        enable_prefix_caching=caching,
        window=window,
        num_blocks=22 if window else 11,
    )
    serve(stage, load)
    assert stage.preemptions == 0
    assert promised(stage) == 0


@BOTH
def test_the_same_load_is_preempted_where_it_is_computed_again(cls: type[ARScheduler]) -> None:
    """The control: the loads above are such that blocks run out."""
    source = random.Random(5)
    load = [(source.randint(1, 20), source.randint(1, 20), source.randint(0, 3)) for _ in range(40)]
    preempted = {}
    for policy in (Preemption.RECOMPUTE, Preemption.RESERVE):
        stage = a_stage(cls, policy)
        serve(stage, load)
        preempted[policy] = stage.preemptions
    assert preempted[Preemption.RECOMPUTE] > 3
    assert preempted[Preemption.RESERVE] == 0
