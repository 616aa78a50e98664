"""Streams under pressure: preempted, thrashing, aborted, and in any pattern of arrivals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sched_core import sampled
from sched_engine import Stage, plan
from sched_worker import Given
from vllm.v1.engine import FinishReason
from vllm.v1.request import RequestStatus

from antiphon.sched.ar import ARScheduler, AsyncARScheduler

BOTH = pytest.mark.parametrize("cls", [ARScheduler, AsyncARScheduler], ids=["sync", "async"])

PROMPT = plan(1, 2, 3)


def crowded(cls: type[ARScheduler], **kw: Any) -> Stage:
    """`a` starves after two tokens, last in the running order; `b` needs more blocks than are
    free, so that `a` is preempted.
    """
    stage = Stage(cls, block_size=4, num_blocks=7, max_model_len=64, **kw)
    stage.submit("b", 8, max_tokens=14)
    stage.submit("a", stream=True, max_tokens=8)
    stage.deliver("a", Given(plan(*range(1, 8)), 1), seq=0, end=False)
    while stage.scheduler.requests["a"].num_preemptions == 0:
        stage.step()
    return stage


@BOTH
def test_a_starving_request_can_be_preempted(cls: type[ARScheduler]) -> None:
    """It leaves the queue then, since it could not be resumed; the other finishes."""
    stage = crowded(cls)
    assert stage.scheduler.requests["a"].status is RequestStatus.PREEMPTED
    assert list(stage.scheduler.waiting) == []
    assert stage.scheduler.kv_cache_manager.get_block_ids("a") == ([],)
    stage.drain()
    assert stage.ends("b") == [FinishReason.LENGTH]
    assert not stage.has_work
    assert stage.ends("a") == []


@BOTH
def test_a_preempted_request_resumes_with_its_row(cls: type[ARScheduler]) -> None:
    """C34, C117: what was computed before is computed again, nothing is reported twice."""
    stage = crowded(cls)
    stage.drain()
    stage.deliver("a", 9, seq=1, end=True)
    stage.drain()
    assert stage.outcomes["a"].tokens == sampled("a", 7, 8)
    assert stage.outcomes["b"].tokens == sampled("b", 8, 14)
    stage.check_empty()


@BOTH
def test_a_row_that_comes_while_there_are_no_blocks_waits_in_the_queue(
    cls: type[ARScheduler],
) -> None:
    stage = crowded(cls)
    stage.deliver("a", 9, seq=1, end=True)
    stage.step()
    stage.step()
    assert [r.request_id for r in stage.scheduler.waiting] == ["a"]
    stage.drain()
    assert stage.outcomes["a"].tokens == sampled("a", 7, 8)
    stage.check_empty()


def test_a_released_request_that_was_preempted_resumes_before_those_that_never_ran() -> None:
    """As upstream has it: also before one that arrived earlier and was gated until now."""
    stage = Stage(block_size=4, num_blocks=7, max_model_len=64)
    stage.submit("gated", gated=True)
    stage.submit("b", 8, max_tokens=14)
    stage.submit("a", stream=True, max_tokens=8)
    stage.deliver("a", Given(plan(*range(1, 8)), 1), seq=0, end=False)
    while stage.scheduler.requests["a"].num_preemptions == 0:
        stage.step()
    stage.deliver("gated", plan(*range(1, 9)))
    stage.deliver("a", 9, seq=1, end=True)
    stage.step()
    assert [r.request_id for r in stage.scheduler.waiting] == ["a", "gated"]
    stage.drain()
    stage.check_empty()


@BOTH
def test_a_reset_of_the_cache_preempts_a_starving_request_as_well(cls: type[ARScheduler]) -> None:
    """Upstream preempts every running request then, between two steps."""
    stage = Stage(cls)
    stage.submit("a", stream=True)
    stage.deliver("a", Given(PROMPT, 2), seq=0, end=False)
    stage.drain()
    stage.scheduler.reset_prefix_cache(True)
    stage.check()
    assert not stage.has_work
    stage.deliver("a", 1, seq=1, end=False)
    stage.drain()
    assert stage.outcomes["a"].tokens == sampled("a", 3, 4)


@BOTH
@pytest.mark.parametrize("blocks", [40, 8], ids=["roomy", "thrashing"])
def test_many_streams_give_what_each_gives_alone(cls: type[ARScheduler], blocks: int) -> None:
    """C34, C116, C119: more streams than seats and blocks; each gets on, none differs."""
    stage = Stage(cls, block_size=4, num_blocks=blocks, max_num_seqs=4, max_model_len=64)
    for number in range(8):
        stage.submit(f"r{number}", stream=True, max_tokens=9)
        stage.deliver(f"r{number}", Given(PROMPT, 1), seq=0, end=False)
    for seq in range(1, 9):
        for number in range(8):
            stage.deliver(f"r{number}", 1, seq=seq, end=seq == 8)
            stage.step()
    stage.drain(600)
    for number in range(8):
        assert stage.outcomes[f"r{number}"].tokens == sampled(f"r{number}", 3, 9)
    assert (stage.preemptions > 0) is (blocks == 8)
    stage.check_empty()


@BOTH
def test_those_that_wait_for_a_starving_requests_seat_cost_no_step(cls: type[ARScheduler]) -> None:
    """C116. The engine sleeps until the row comes."""
    stage = Stage(cls, max_num_seqs=1)
    stage.submit("a", stream=True, max_tokens=3)
    stage.deliver("a", PROMPT, seq=0, end=False)
    stage.drain()
    stage.submit("b", max_tokens=2)
    stage.drain(3)
    assert stage.ends("b") == []
    stage.deliver("a", 9, seq=1, end=True)
    stage.drain()
    assert stage.ends("a") == stage.ends("b") == [FinishReason.LENGTH]
    stage.check_empty()


@BOTH
@pytest.mark.parametrize("when", ["gated", "running", "starving", "preempted", "released"])
def test_a_stream_can_be_aborted_in_every_state(cls: type[ARScheduler], when: str) -> None:
    """C1, C2."""
    if when in ("preempted", "released"):
        stage = crowded(cls)
    else:
        stage = Stage(cls)
        stage.submit("b", max_tokens=9)
        stage.submit("a", stream=True)
    if when in ("running", "starving"):
        stage.deliver("a", Given(PROMPT, 1), seq=0, end=False)
        for _ in range(2 if when == "running" else 6):
            stage.step()
    if when == "released":
        stage.deliver("a", 1, seq=1, end=False)
        stage.step()
    stage.abort("a")
    stage.drain()
    assert stage.ends("a") == [FinishReason.ABORT]
    assert stage.ends("b") == [FinishReason.LENGTH]
    stage.check_empty()


@BOTH
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_pattern_of_arrivals_changes_nothing(cls: type[ARScheduler], data: Any) -> None:
    """C34, C107, C117: rows in any portions, order and time, with and without preemption."""
    blocks = data.draw(st.sampled_from([9, 40]), "blocks")
    stage = Stage(cls, block_size=4, num_blocks=blocks, max_num_seqs=3, max_model_len=64)
    chunks = []
    for uid in ("a", "b", "c"):
        stage.submit(uid, stream=True, max_tokens=10)
        rows = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=6), uid)
        ends = len(rows)
        chunks += [(uid, seq + 1, Given(rows=n)) for seq, n in enumerate(rows)]
        chunks += [
            (uid, 0, Given(plan(*range(1, 6)), data.draw(st.integers(0, 2)))),
            (uid, ends + 1, Given()),
        ]
    last = {uid: max(seq for u, seq, _ in chunks if u == uid) for uid in ("a", "b", "c")}
    for uid, seq, made in data.draw(st.permutations(chunks), "order"):
        stage.deliver(uid, made, seq=seq, end=seq == last[uid])
        for _ in range(data.draw(st.integers(0, 3))):
            stage.step()
    stage.drain(600)
    for uid in ("a", "b", "c"):
        assert stage.outcomes[uid].tokens == sampled(uid, 5, 10)
    stage.check_empty()
