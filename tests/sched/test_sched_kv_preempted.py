"""KV hand-off and preemption: a cache leaves whole, later, or not at all; never a part of one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sched_core import sampled
from sched_kv import KvStage, special
from vllm.v1.engine import FinishReason
from vllm.v1.outputs import LogprobsTensors, ModelRunnerOutput
from vllm.v1.request import RequestStatus

from antiphon.core.kv_handoff import KvSettings, KvTransfer
from antiphon.core.options import Preemption
from antiphon.sched.ar import ARScheduler, AsyncARScheduler

BOTH = pytest.mark.parametrize("cls", [ARScheduler, AsyncARScheduler], ids=["sync", "async"])
CACHING = pytest.mark.parametrize("caching", [False, True], ids=["plain", "prefix cache"])
PARKED = pytest.mark.parametrize("park", [True, False], ids=["parked", "unparked"])
GOES_ON = KvTransfer("prefill_finished", stop_after_transfer=False)


def preempt(stage: KvStage, uid: str) -> None:
    """As upstream does it for another request's sake."""
    stage.scheduler.parking.preempt(stage.scheduler.requests[uid])


def preempt_before_the_result(stage: KvStage, uid: str, seen: int) -> None:
    """The request loses its blocks while the step is in flight that samples token `seen`."""
    stage.until(lambda: len(stage.outcomes[uid].tokens) == seen)
    if stage.depth == 1:
        stage.step(before_update=lambda: preempt(stage, uid))
    else:  # a step is in flight whose result the next one processes
        stage.until(lambda: stage.in_flight)
        preempt(stage, uid)


@BOTH
@CACHING
@PARKED
@pytest.mark.parametrize("at", [0, 4], ids=["prefill", "special"])
def test_a_trigger_without_blocks_waits_until_they_are_computed_again(
    cls: type[ARScheduler], caching: bool, park: bool, at: int
) -> None:
    """C117, C119. The token is reported; what is sampled while it computes again is not."""
    transfer = (
        special(sampled("a", 20, 5)[at], park=park)
        if at
        else KvTransfer("prefill_finished", park=park)
    )
    stage = KvStage(cls, transfer, enable_prefix_caching=caching)
    stage.submit("a", 20, max_tokens=50)
    stage.submit("b", 20, max_tokens=20, hands_over=False)
    preempt_before_the_result(stage, "a", at)
    stage.until(lambda: len(stage.outcomes["a"].tokens) > at)
    assert stage.statistics.marked == 0
    assert stage.scheduler.requests["a"].num_preemptions == 1
    stage.drain()
    (ship,) = stage.ships
    assert (ship.length, len(ship.token_ids)) == (20 + at, 21 + at)
    assert stage.outcomes["a"].tokens == sampled("a", 20, at + 1)
    assert stage.heard[:2] == ["ready a", "end a"]
    assert stage.outcomes["b"].tokens == sampled("b", 20, 20)
    stage.check_over()


@BOTH
def test_prompt_logprobs_of_a_second_computation_are_dropped(cls: type[ARScheduler]) -> None:
    """They come with a token that is dropped, which upstream rules out: its step would fail."""
    stage = KvStage(cls)
    request = stage.submit("a", 20)
    computed: set[int] = set()  # how often it had been preempted

    def with_logprobs(output: ModelRunnerOutput) -> ModelRunnerOutput:
        if "a" in output.req_ids and request.num_preemptions not in computed:
            computed.add(request.num_preemptions)
            zeros = torch.zeros(19, 1)
            logprobs = LogprobsTensors(zeros.int(), zeros, torch.zeros(19).int())
            output.prompt_logprobs_dict = {"a": logprobs}
            output.prompt_token_id_logprobs_dict = {"a": zeros}
        return output

    stage.alter = with_logprobs
    preempt_before_the_result(stage, "a", 0)
    stage.drain()
    assert computed == {0, 1}
    assert stage.heard == ["ready a", "end a"]
    stage.check_over()


@BOTH
@CACHING
def test_a_request_that_goes_on_hands_over_when_it_has_computed_again(
    cls: type[ARScheduler], caching: bool
) -> None:
    stage = KvStage(cls, GOES_ON, enable_prefix_caching=caching)
    stage.submit("a", 20, max_tokens=12)
    preempt_before_the_result(stage, "a", 0)
    stage.drain()
    (ship,) = stage.ships
    assert ship.length == 20
    assert stage.outcomes["a"].tokens == sampled("a", 20, 12)
    assert stage.heard == ["ready a", "end a"]
    stage.check_over()


@BOTH
@CACHING
@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("criterion", ["prefill_finished", "request_finished"])
def test_a_request_that_ends_without_blocks_has_no_cache_to_hand_over(
    cls: type[ARScheduler], caching: bool, recompute: bool, criterion: Any
) -> None:
    """C119. It fails, or its consumer computes the cache itself; nothing is shipped."""
    stage = KvStage(
        cls,
        KvTransfer(criterion),
        KvSettings(on_failure="recompute" if recompute else "fail"),
        enable_prefix_caching=caching,
    )
    stage.submit("a", 20, max_tokens=1)
    preempt_before_the_result(stage, "a", 0)
    stage.drain()
    assert stage.ships == []
    assert stage.outcomes["a"].tokens == sampled("a", 20, 1)
    if recompute:
        (ref,) = stage.sent
        assert ref.token_ids == (*range(1, 21), *stage.outcomes["a"].tokens)
        assert (ref.key, stage.error_code("a")) == (None, None)
        stage.sent.clear()
    else:
        assert stage.sent == []
        assert stage.error_code("a") == "kv_transfer"
    assert stage.late == {}
    assert stage.statistics.failed == 1
    stage.check_over()


@BOTH
@CACHING
@PARKED
@pytest.mark.parametrize("when", ["marked", "shipped"])
@pytest.mark.parametrize("ok", [True, False], ids=["stored", "failed"])
def test_a_preempted_request_hands_over_what_is_held(
    cls: type[ARScheduler], caching: bool, park: bool, when: str, ok: bool
) -> None:
    """It leaves the queues and computes nothing again: what is wanted of it is there."""
    stage = KvStage(
        cls, KvTransfer("prefill_finished", park=park), enable_prefix_caching=caching, num_blocks=8
    )
    stage.answer = "keep"
    stage.submit("a", 20, max_tokens=50)
    stage.until(lambda: stage.scheduler.handoffs.to_ship if when == "marked" else stage.ships)
    preempt(stage, "a")
    assert stage.scheduler.requests["a"].status is RequestStatus.PREEMPTED
    assert stage.scheduler.get_request_counts() == (0, 0)
    stage.submit("b", tokens=range(100, 160), max_tokens=5, hands_over=False)
    stage.drain()
    assert stage.ends("b") == [FinishReason.LENGTH]
    (ship,) = stage.ships
    stage._judge(ship)
    assert stage.scheduler.requests["a"].num_computed_tokens == 0
    stage.ack(ship, ok=ok)
    stage.drain()
    assert stage.heard == (["end b", "ready a", "end a"] if ok else ["end b", "end a"])
    assert stage.outcomes["a"].tokens == sampled("a", 20, 1)
    stage.check_over()


@BOTH
@CACHING
def test_a_request_that_goes_on_may_be_preempted_while_its_cache_leaves(
    cls: type[ARScheduler], caching: bool
) -> None:
    """It computes its tokens again, in other blocks."""
    stage = KvStage(cls, GOES_ON, enable_prefix_caching=caching)
    stage.answer = "keep"
    stage.submit("a", 20, max_tokens=12)
    stage.until(lambda: stage.ships)
    preempt(stage, "a")
    stage.drain()
    assert stage.ends("a") == [FinishReason.LENGTH]
    stage._judge(stage.ships[0])
    stage.ack(stage.ships[0])
    stage.drain()
    assert stage.outcomes["a"].tokens == sampled("a", 20, 12)
    assert stage.heard == ["end a", "ready a"]
    stage.check_over()


@BOTH
@CACHING
def test_a_reset_of_the_cache_before_the_trigger_only_delays_it(
    cls: type[ARScheduler], caching: bool
) -> None:
    """Upstream drops what is in flight then; the token is sampled again."""
    stage = KvStage(cls, enable_prefix_caching=caching)
    stage.submit("a", 20)
    stage.step(before_update=lambda: stage.scheduler.reset_prefix_cache(True))
    if stage.depth == 2:
        stage.scheduler.reset_prefix_cache(True)
    stage.drain()
    assert stage.outcomes["a"].tokens == sampled("a", 20, 1)
    assert stage.heard == ["ready a", "end a"]
    stage.check_over()


@BOTH
def test_where_nothing_is_recomputed_a_preempted_hand_off_succeeds(cls: type[ARScheduler]) -> None:
    """What is wanted of the request is held; the one beside it has lost all it had."""
    stage = KvStage(cls, preemption=Preemption.FAIL, num_blocks=6, max_model_len=64)
    stage.answer = "keep"
    stage.submit("b", 20, hands_over=False, max_tokens=40)
    request = stage.submit("a", 20)
    stage.until(lambda: stage.ends("b"))
    assert stage.error_code("b") == "preempted"
    assert request.num_preemptions == 1
    stage.drain()
    stage.ack(stage.ships[0])
    stage.drain()
    assert stage.heard == ["end b", "ready a", "end a"]
    assert stage.error_code("a") is None
    stage.check_over()


def test_an_order_is_not_given_for_a_request_that_ends_in_the_same_step() -> None:
    """It is preempted where nothing is recomputed, and would have gone on after its transfer."""
    fails = Preemption.FAIL
    stage = KvStage(ARScheduler, GOES_ON, preemption=fails, num_blocks=4, max_model_len=48)
    stage.submit("b", 15, max_tokens=20, hands_over=False)
    stage.step()
    stage.submit("a", 20, max_tokens=20)
    stage.step()
    assert stage.scheduler.handoffs.to_ship
    stage.drain()
    assert stage.error_code("a") == "preempted"
    assert stage.ships == []
    assert stage.statistics.cancelled == 1
    stage.check_over()


@BOTH
@CACHING
@PARKED
@pytest.mark.parametrize("answer", ["ok", "fail"])
def test_many_hand_offs_in_a_small_pool(
    cls: type[ARScheduler], caching: bool, park: bool, answer: Any
) -> None:
    """C116, C117, C119: preempted again and again, each cache arrives whole and once."""
    stage = KvStage(
        cls,
        special(7, park=park),
        enable_prefix_caching=caching,
        block_size=4,
        num_blocks=14,
        max_num_seqs=4,
        max_model_len=64,
    )
    stage.answer = answer
    for number in range(8):
        stage.submit(f"r{number}", 6 + number, max_tokens=24, hands_over=number % 4 > 0)
    stage.drain(600)
    assert stage.preemptions > 0
    assert len(stage.ships) == 6
    for number in range(8):
        uid, start = f"r{number}", 6 + number
        expected = sampled(uid, start, 24)
        if number % 4:
            expected = expected[: expected.index(7) + 1]
            assert stage.shipped(uid)[0].length == start + len(expected) - 1
        assert stage.outcomes[uid].tokens == expected
    assert len(stage.stored) == (6 if answer == "ok" else 0)
    stage.check_over()
