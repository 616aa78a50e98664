"""Stream edges of an ar stage: output token r is computed with row r, and waits for it.

What every scheduled token may be computed with is judged by the harness's worker in every step.
"""

from __future__ import annotations

from typing import Any

import pytest
from sched_core import sampled, token_at
from sched_engine import EDGE, Stage, plan
from sched_worker import Given
from vllm.v1.engine import FinishReason
from vllm.v1.request import RequestStatus

from antiphon.core.chunks import MAX_AHEAD
from antiphon.core.gate import GateState
from antiphon.errors import AdapterError, PayloadError, StageInputTimeout
from antiphon.sched.ar import ARScheduler, AsyncARScheduler
from antiphon.testing.clock import ManualClock

BOTH = pytest.mark.parametrize("cls", [ARScheduler, AsyncARScheduler], ids=["sync", "async"])

PROMPT = plan(1, 2, 3)


def talking(
    cls: type[ARScheduler] = ARScheduler, *, rows: int = 0, max_tokens: int = 20, **kw: Any
) -> Stage:
    """A stage whose request "a" has its prompt and `rows` rows, and has run dry."""
    stage = Stage(cls, **kw)
    stage.submit("a", stream=True, max_tokens=max_tokens)
    stage.deliver("a", Given(PROMPT, rows), seq=0, end=False)
    stage.drain()
    return stage


# --- the row-granular gate ------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_each_row_lets_one_token_be_fed_back(cls: type[ARScheduler], rows: int) -> None:
    """The prompt samples the first token; row r computes output token r, which samples the next."""
    stage = talking(cls, rows=rows)
    assert len(stage.outcomes["a"].tokens) == rows + 1
    stage.deliver("a", 2, seq=1, end=False)
    stage.drain()
    assert len(stage.outcomes["a"].tokens) == rows + 3


@BOTH
def test_a_starving_request_costs_no_step_and_the_engine_sleeps(cls: type[ARScheduler]) -> None:
    stage = talking(cls)
    assert not stage.has_work
    assert stage.scheduler.coordinator.gate.state("a") is GateState.WAITING
    assert stage.step().scheduled is None


@BOTH
def test_a_starving_request_keeps_its_place_its_blocks_and_its_seat(cls: type[ARScheduler]) -> None:
    stage = talking(cls, rows=5, block_size=4)
    stage.submit("b", max_tokens=3)
    held = stage.scheduler.kv_cache_manager.get_block_ids("a")
    stage.step()
    assert [request.request_id for request in stage.scheduler.running] == ["a", "b"]
    stage.drain()
    assert stage.scheduler.kv_cache_manager.get_block_ids("a") == held
    assert stage.scheduler.requests["a"].status is RequestStatus.RUNNING
    assert stage.scheduler.requests["a"].num_preemptions == 0


@BOTH
def test_others_run_at_full_speed_beside_a_starving_request(cls: type[ARScheduler]) -> None:
    alone = Stage(cls)
    alone.submit("b", max_tokens=9)
    stage = talking(cls)
    stage.submit("b", max_tokens=9)
    counts = []
    for each in (alone, stage):
        steps = 0
        while each.has_work:
            each.step()
            steps += 1
        counts.append(steps)
    assert counts[0] == counts[1]
    assert stage.outcomes["b"].tokens == alone.outcomes["b"].tokens


@BOTH
def test_the_end_of_the_stream_releases_for_good(cls: type[ARScheduler]) -> None:
    """Past the last row the model pads, so nothing is waited for any more."""
    stage = talking(cls, rows=1, max_tokens=9)
    stage.deliver("a", 1, seq=1, end=True)
    stage.drain()
    assert stage.outcomes["a"].tokens == sampled("a", 3, 9)
    assert stage.ends("a") == [FinishReason.LENGTH]
    stage.check_empty()


@BOTH
def test_no_token_is_padded_before_the_stream_has_ended(cls: type[ARScheduler]) -> None:
    """C38, the gate's part: padding is for what lies behind the last row, never for a gap."""
    stage = talking(cls, rows=1)
    stage.deliver("a", 4, seq=2, end=True)  # the end is announced, but chunk 1 is missing
    stage.drain()
    assert len(stage.outcomes["a"].tokens) == 2
    stage.deliver("a", 1, seq=1, end=False)
    stage.drain()
    assert len(stage.outcomes["a"].tokens) == 20


@BOTH
def test_an_empty_end_after_chunks_releases(cls: type[ARScheduler]) -> None:
    """C115: the end comes as a chunk of its own, which the adapter hears of."""
    stage = talking(cls, rows=1, max_tokens=5)
    stage.deliver_nothing("a", seq=1)
    stage.drain()
    assert stage.fetched == [("a", 0), ("a", 1)]
    assert stage.ends("a") == [FinishReason.LENGTH]
    stage.check_empty()


@BOTH
def test_rows_that_the_adapter_has_left_at_the_end_are_used(cls: type[ARScheduler]) -> None:
    stage = talking(cls, max_tokens=4)
    stage.deliver_nothing("a", seq=1, answer=2)
    stage.drain()
    assert stage.outcomes["a"].tokens == sampled("a", 3, 4)
    stage.check_empty()


@BOTH
def test_a_chunk_without_rows_opens_nothing(cls: type[ARScheduler]) -> None:
    stage = talking(cls, rows=1)
    stage.deliver("a", 0, seq=1, end=False)
    stage.drain()
    assert len(stage.outcomes["a"].tokens) == 2
    assert "key-a-0-1" in stage.used  # absorbed by the adapter


@BOTH
def test_an_input_that_ends_without_a_prompt_finishes_the_request(cls: type[ARScheduler]) -> None:
    """C115."""
    stage = Stage(cls)
    stage.submit("a", stream=True)
    stage.deliver("a", 0, seq=0, end=False)
    stage.deliver_nothing("a", seq=1)
    stage.drain()
    assert stage.ends("a") == [FinishReason.STOP]
    stage.check_empty()


def test_a_second_prompt_is_the_adapters_error() -> None:
    stage = talking(rows=2)
    stage.deliver("a", PROMPT, seq=1, end=False)
    stage.drain()
    assert stage.error_code("a") == AdapterError.code
    stage.check_empty()


# --- order ----------------------------------------------------------------------------------------


@BOTH
def test_chunks_apply_in_order_whatever_order_they_arrive_in(cls: type[ARScheduler]) -> None:
    """C107: the end waits for the chunks before it; a repeat is dropped."""
    stage = Stage(cls)
    stage.submit("a", stream=True, max_tokens=7)
    stage.deliver("a", 1, seq=3, end=True)
    stage.deliver("a", 2, seq=1, end=False)
    stage.deliver("a", 2, seq=1, end=False)
    stage.drain()
    assert stage.fetched == []
    stage.deliver("a", PROMPT, seq=0, end=False)
    stage.drain()
    assert stage.fetched == [("a", 0), ("a", 1)]
    assert len(stage.outcomes["a"].tokens) == 3
    stage.deliver("a", 3, seq=2, end=False)
    stage.drain()
    assert stage.fetched == [("a", 0), ("a", 1), ("a", 2), ("a", 3)]
    assert stage.outcomes["a"].tokens == sampled("a", 3, 7)
    stage.check_empty()


@BOTH
def test_a_gap_of_one_request_holds_up_no_other(cls: type[ARScheduler]) -> None:
    """C107: no head-of-line blocking between requests."""
    stage = Stage(cls)
    for uid in "ab":
        stage.submit(uid, stream=True, max_tokens=3)
    stage.deliver("a", 9, seq=1, end=True)
    stage.deliver("b", Given(PROMPT, 9), seq=0, end=True)
    stage.drain()
    assert stage.ends("b") == [FinishReason.LENGTH]
    assert stage.ends("a") == []


def test_a_gap_that_never_closes_ends_its_request() -> None:
    """Chunks that wait are bounded; all of them are given back."""
    stage = talking(rows=1)
    for seq in range(2, MAX_AHEAD + 3):
        stage.deliver("a", 1, seq=seq, end=False)
    stage.drain()
    assert stage.error_code("a") == PayloadError.code
    assert len(stage.used) == len(stage.delivered)
    stage.check_empty()


@pytest.mark.parametrize("epoch", [0, 2])
def test_a_chunk_of_another_segment_is_dropped(epoch: int) -> None:
    """Late news of an interrupted producer, or of its next segment, are not this request's."""
    stage = Stage()
    stage.submit("a", stream=True, epoch=1)
    stage.deliver("a", Given(PROMPT, 9), epoch=epoch)
    stage.drain()
    assert stage.fetched == []
    assert stage.used == [f"key-a-{epoch}-0"]
    stage.deliver("a", Given(PROMPT, 9), epoch=1)
    stage.drain()
    assert stage.ends("a") == [FinishReason.LENGTH]
    stage.check_empty()


def test_a_chunk_behind_the_end_is_freed() -> None:
    stage = talking()
    late = stage.deliver("a", 1, seq=5, end=False)
    stage.deliver_nothing("a", seq=1)
    stage.drain()
    assert stage.used.count(str(late.key)) == 1
    assert [key for work in stage.works for key in work.discards] == [late.key]
    stage.check_empty()


# --- what is used up ------------------------------------------------------------------------------


@BOTH
def test_a_chunk_is_used_up_once_its_last_row_has_been_fed(cls: type[ARScheduler]) -> None:
    """Its producer may send another then, and not before."""
    stage = Stage(cls)
    stage.submit("a", stream=True, max_tokens=6)
    stage.deliver("a", PROMPT, seq=0, end=False)
    stage.drain()
    assert stage.used == ["key-a-0-0"]
    stage.deliver("a", 2, seq=1, end=False)
    for _ in range(20):
        if len(stage.outcomes["a"].tokens) == 2:
            break
        assert "key-a-0-1" not in stage.used
        stage.step()
    stage.drain()
    assert stage.used == ["key-a-0-0", "key-a-0-1"]
    stage.deliver("a", 9, seq=2, end=True)
    stage.drain()
    assert stage.used == ["key-a-0-0", "key-a-0-1", "key-a-0-2"]
    stage.check_empty()


@BOTH
def test_a_starving_request_holds_back_no_chunk(cls: type[ARScheduler]) -> None:
    """Otherwise it would wait for a producer that waits for it."""
    stage = talking(cls, rows=3)
    assert stage.used == ["key-a-0-0"]


@BOTH
@pytest.mark.parametrize("end", ["abort", "worker"])
def test_the_end_of_a_request_gives_back_all_of_its_chunks_once(
    cls: type[ARScheduler], end: str
) -> None:
    """Taken, not fetched yet, behind a gap, and late ones."""
    stage = talking(cls, rows=1)
    stage.deliver("a", 5, seq=1, end=False)
    stage.step()
    stage.deliver("a", 1, seq=2, end=False)
    stage.deliver("a", 1, seq=7, end=False)
    if end == "abort":
        stage.abort("a")
    else:
        stage.failures.append(("a", PayloadError("corrupt").to_wire()))
        stage.step()
    stage.deliver("a", 1, seq=3, end=False)
    stage.drain()
    assert sorted(stage.used) == [f"key-a-0-{seq}" for seq in (0, 1, 2, 3, 7)]
    stage.check_empty()


# --- deadlines ------------------------------------------------------------------------------------


@BOTH
def test_a_stream_that_stalls_ends_with_a_typed_error(cls: type[ARScheduler]) -> None:
    """C9, C12: the time since the last progress; the edge and the last chunk are named."""
    clock = ManualClock()
    stage = Stage(cls, clock=clock)
    stage.submit("a", stream=True, timeout_s=5.0)
    stage.submit("b", max_tokens=3)
    stage.deliver("a", Given(PROMPT, 1), seq=0, end=False)
    clock.advance(4.0)
    stage.drain()
    stage.deliver("a", 1, seq=1, end=False)
    clock.advance(4.0)
    stage.drain()
    clock.advance(4.9)
    assert not stage.has_work
    clock.advance(0.1)
    assert stage.has_work
    stage.drain()
    assert stage.error_code("a") == StageInputTimeout.code
    error = stage.outcomes["a"].error
    assert error is not None
    assert f"edge '{EDGE}'" in error.message
    assert "the last chunk was 1" in error.message
    assert "5.0 s" in error.message
    assert stage.ends("b") == [FinishReason.LENGTH]
    stage.check_empty()


def test_no_time_is_counted_while_a_request_has_rows() -> None:
    clock = ManualClock()
    stage = Stage(clock=clock)
    stage.submit("a", stream=True, timeout_s=5.0, max_tokens=9)
    stage.deliver("a", Given(PROMPT, 6), seq=0, end=False)
    stage.step()
    stage.step()
    clock.advance(100.0)
    assert stage.scheduler.next_due() is None
    stage.drain()
    assert len(stage.outcomes["a"].tokens) == 7
    assert stage.scheduler.next_due() == 105.0


# --- prefill, ends --------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("length", [17, 16])
def test_a_streams_prompt_is_prefilled_in_chunks(cls: type[ARScheduler], length: int) -> None:
    """C38: the last part, of one token, is still prefill, and needs no row."""
    stage = Stage(cls, max_num_batched_tokens=8)
    stage.submit("a", stream=True, max_tokens=3)
    stage.deliver("a", plan(*range(1, length + 1)), seq=0, end=False)
    counts: list[int] = []
    while stage.has_work:
        done = stage.step()
        if done.scheduled is not None:
            counts += done.scheduled.num_scheduled_tokens.values()
    assert counts == [8, 8, 1][: 2 + (length == 17)]
    assert stage.outcomes["a"].tokens == sampled("a", length, 1)


@BOTH
def test_a_stop_token_in_flight_ends_a_starving_request(cls: type[ARScheduler]) -> None:
    """Asynchronously the wait begins before the token is known that ends the request."""
    stage = Stage(cls)
    stage.submit("a", stream=True, stop_token_ids=[token_at("a", 4)])
    stage.deliver("a", Given(PROMPT, 1), seq=0, end=False)
    stage.drain()
    assert stage.ends("a") == [FinishReason.STOP]
    stage.check_empty()


def test_streams_share_no_cached_block() -> None:
    """Their tokens depend on rows, which no key knows; plain prompts are found as ever."""
    stage = Stage(enable_prefix_caching=True, block_size=4)
    cached = {}
    for uid, stream in (("a", True), ("b", True), ("c", False), ("d", False)):
        stage.submit(uid, gated=True, stream=stream, max_tokens=1)
        stage.deliver(uid, plan(*range(1, 10)))
        while stage.has_work:
            done = stage.step()
            if done.scheduled is not None:
                new = done.scheduled.scheduled_new_reqs
                cached |= {each.req_id: each.num_computed_tokens for each in new}
    assert cached == {"a": 0, "b": 0, "c": 0, "d": 8}
