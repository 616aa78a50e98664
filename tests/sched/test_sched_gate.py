"""Requests that wait for another stage: gate, payloads, planned prompts, deadlines."""

from __future__ import annotations

import pytest
from sched_engine import EDGE, OUT, Stage, plan
from vllm.v1.engine import FinishReason
from vllm.v1.request import RequestStatus

from antiphon.core.tickets import Ended, Fetch
from antiphon.errors import (
    AdapterError,
    AntiphonError,
    DuplicateRequestError,
    EmptyInputError,
    InputTooLongError,
    PayloadError,
    StageInputTimeout,
)
from antiphon.payload.ref import Ref
from antiphon.sched.ar import ARScheduler, AsyncARScheduler
from antiphon.testing.clock import ManualClock
from antiphon.upstream.prompt import renew_prompt, replace_prompt
from factory import VOCAB, make_request

BOTH = pytest.mark.parametrize("cls", [ARScheduler, AsyncARScheduler], ids=["sync", "async"])
POLICIES = pytest.mark.parametrize("policy", ["fcfs", "priority"])


def scheduled(stage: Stage) -> list[str]:
    done = stage.step()
    return [] if done.scheduled is None else list(done.scheduled.num_scheduled_tokens)


def until_scheduled(stage: Stage, uid: str, limit: int = 5) -> None:
    for _ in range(limit):
        if uid in scheduled(stage):
            return
    raise AssertionError(f"{uid} was not scheduled in {limit} steps")


# --- the gate -------------------------------------------------------------------------------------


@BOTH
def test_a_gated_request_is_no_work_and_holds_no_block(cls: type[ARScheduler]) -> None:
    """So that an engine whose requests all wait can sleep."""
    stage = Stage(cls)
    for uid in "abc":
        stage.submit(uid, gated=True)
    assert not stage.has_work
    assert stage.scheduler.get_num_unfinished_requests() == 0
    assert stage.free_blocks == stage.total_blocks
    stage.check()


@BOTH
def test_gated_requests_cost_the_others_nothing(cls: type[ARScheduler]) -> None:
    stage = Stage(cls, max_num_seqs=1)
    stage.submit("gated", gated=True)
    stage.submit("plain", max_tokens=3)
    until_scheduled(stage, "plain")
    stage.drain()
    assert stage.ends("plain") == [FinishReason.LENGTH]
    assert stage.ends("gated") == []


@POLICIES
def test_an_opened_request_stands_where_it_arrived(policy: str) -> None:
    """First come, first served is preserved across the wait."""
    stage = Stage(policy=policy, max_num_seqs=1)
    stage.submit("running", max_tokens=8)
    stage.step()
    stage.submit("before")
    stage.submit("gated", gated=True)
    stage.submit("after", max_tokens=1)
    stage.submit("later", max_tokens=1)
    stage.deliver("gated", plan(1, 2, 3))
    stage.step()
    assert [r.request_id for r in stage.scheduler.waiting] == ["before", "gated", "after", "later"]


def test_several_opened_out_of_order_stand_in_order() -> None:
    stage = Stage(max_num_seqs=1)
    stage.submit("running", max_tokens=20)
    stage.step()
    for uid in "abcd":
        stage.submit(uid, gated=uid != "c")
    for uid in "dab":
        stage.deliver(uid, plan(1, 2))
        stage.step()
    assert [r.request_id for r in stage.scheduler.waiting] == list("abcd")


def test_priority_decides_among_opened_requests() -> None:
    stage = Stage(policy="priority", max_num_seqs=1)
    stage.submit("running", max_tokens=20, priority=0)
    stage.step()
    stage.submit("plain", priority=1)
    stage.submit("low", gated=True, priority=2)
    stage.submit("high", gated=True, priority=0)
    stage.deliver("low", plan(1))
    stage.deliver("high", plan(1))
    stage.step()
    assert [r.request_id for r in stage.scheduler.waiting] == ["high", "plain", "low"]


def test_a_preempted_request_resumes_before_an_opened_one_that_arrived_earlier() -> None:
    stage = Stage(num_blocks=4, block_size=4, max_num_seqs=2, max_model_len=64)
    stage.submit("gated", gated=True)
    stage.submit("first", n=4, max_tokens=8)
    stage.submit("second", n=4, max_tokens=8)
    for _ in range(12):
        stage.step()
        if stage.scheduler.requests["second"].status is RequestStatus.PREEMPTED:
            break
    stage.deliver("gated", plan(1))
    stage.step()
    assert [r.request_id for r in stage.scheduler.waiting] == ["second", "gated"]
    stage.drain()
    stage.check_empty()


# --- payloads -------------------------------------------------------------------------------------


@BOTH
def test_a_delivered_ref_becomes_one_fetch_order(cls: type[ARScheduler]) -> None:
    stage = Stage(cls)
    stage.submit("a", gated=True)
    ref = stage.deliver("a", plan(5, 6, 7))
    assert stage.has_work
    stage.step()
    fetches = [fetch for work in stage.works for fetch in work.fetches]
    assert fetches == [Fetch("a", ref, {})]


@BOTH
def test_the_planned_prompt_replaces_the_placeholder(cls: type[ARScheduler]) -> None:
    stage = Stage(cls, block_size=4)
    tokens = [7, 8, 9, 10, 11, 12, 13, 14, 15]
    request = stage.submit("a", gated=True, max_tokens=2)
    stage.deliver("a", plan(*tokens, salt="voice"))
    until_scheduled(stage, "a")
    twin = make_request("twin", tokens=tokens, block_size=4, cache_salt="voice")
    (new,) = [n for d in stage.in_flight for n in d[0].scheduled_new_reqs] or [None]
    if new is not None:
        assert new.prompt_token_ids == tokens
    assert request.num_prompt_tokens == 9
    assert request.prompt_token_ids == tokens
    assert list(request.all_token_ids)[:9] == tokens
    assert request.block_hashes[:2] == twin.block_hashes
    assert request.cache_salt == "voice"
    stage.drain()
    assert stage.ends("a") == [FinishReason.LENGTH]
    assert len(stage.outcomes["a"].tokens) == 2
    stage.check_empty()


def test_nothing_is_left_of_a_placeholder_that_filled_blocks() -> None:
    request = make_request("a", n=9, block_size=4, cache_salt="a")
    twin = make_request("twin", tokens=range(20, 30), block_size=4, cache_salt="voice")
    replace_prompt(request, range(20, 30), "voice")
    assert request.block_hashes == twin.block_hashes
    assert list(request.all_token_ids) == request.prompt_token_ids == list(range(20, 30))
    assert request.num_tokens == request.num_prompt_tokens == 10


def test_a_prompt_keeps_no_more_than_was_computed() -> None:
    """The blocks of a token that has not been computed hold nothing."""
    stage = Stage()
    request = stage.submit("a", n=10)
    stage.step()
    with pytest.raises(AssertionError, match="not computed"):
        renew_prompt(request, range(20), same=20, computed=12)
    with pytest.raises(AssertionError, match="not computed"):
        renew_prompt(request, range(20), same=3, computed=4)


def test_a_planned_prompt_beyond_the_budget_is_prefilled_in_chunks() -> None:
    """The last chunk, of one token, is still prefill: nothing is sampled before it."""
    stage = Stage(max_num_batched_tokens=8)
    stage.submit("a", gated=True, max_tokens=1)
    stage.deliver("a", plan(*range(1, 18)))
    counts = []
    while stage.has_work:
        done = stage.step()
        if done.scheduled is not None:
            counts += done.scheduled.num_scheduled_tokens.values()
            assert (stage.outcomes["a"].tokens == []) == (sum(counts) < 17)
    assert counts == [8, 8, 1]
    stage.check_empty()


def cached_tokens(stage: Stage, uid: str, tokens: list[int], salt: str | None, rows: bool) -> int:
    """Serve one planned prompt; the number of its tokens that the prefix cache had."""
    stage.submit(uid, gated=True, max_tokens=1)
    stage.deliver(uid, plan(*tokens, salt=salt, rows_local=rows))
    cached = []
    while stage.has_work:
        done = stage.step()
        if done.scheduled is not None:
            cached += [n.num_computed_tokens for n in done.scheduled.scheduled_new_reqs]
    assert len(cached) == 1
    return int(cached[0])


@pytest.mark.parametrize(
    ("first", "second", "rows", "hit"),
    [
        (None, None, False, 8),
        ("alice", "alice", False, 8),
        ("alice", "bob", False, 0),
        ("alice", None, False, 0),
        ("alice", "alice", True, 8),
        (None, None, True, 0),
    ],
)
def test_conditioning_is_part_of_the_prefix_caches_key(
    first: str | None, second: str | None, rows: bool, hit: int
) -> None:
    """C99. Equal ids hit only under equal conditioning; unknown conditioning is never shared."""
    stage = Stage(enable_prefix_caching=True, block_size=4)
    tokens = list(range(1, 11))
    assert cached_tokens(stage, "a", tokens, first, rows) == 0
    assert cached_tokens(stage, "b", tokens, second, rows) == hit
    stage.check_empty()


def test_a_planned_prompt_finds_what_a_plain_request_has_cached() -> None:
    stage = Stage(enable_prefix_caching=True, block_size=4)
    tokens = list(range(1, 11))
    stage.submit("plain", tokens=tokens, max_tokens=1)
    stage.drain()
    assert cached_tokens(stage, "gated", tokens, None, False) == 8


@BOTH
def test_an_empty_end_finishes_the_request_at_once(cls: type[ARScheduler]) -> None:
    """C115. Nothing is scheduled for it; its own consumers hear of the end."""
    stage = Stage(cls)
    stage.submit("a", gated=True, edges=(OUT,))
    stage.submit("other", max_tokens=2)
    stage.deliver_nothing("a")
    assert stage.has_work
    stage.step()
    stage.step()
    assert stage.ends("a") == [FinishReason.STOP]
    assert stage.error_code("a") is None
    stage.drain()
    assert stage.ends("other") == [FinishReason.LENGTH]
    assert [e for w in stage.works for e in w.ended] == [Ended("a", True, 1)]
    stage.check_empty()


def test_an_empty_end_of_the_only_request_is_reported_though_nothing_is_scheduled() -> None:
    """C9, C115."""
    stage = Stage()
    stage.submit("a", gated=True)
    stage.deliver_nothing("a")
    done = stage.step()
    assert done.scheduled is not None
    assert done.scheduled.total_num_scheduled_tokens == 0
    assert stage.ends("a") == [FinishReason.STOP]
    stage.check_empty()


def test_an_empty_end_that_cannot_be_passed_on_is_an_error() -> None:
    """The worker cannot tell the consumers, in the step that reports the end: one end, an error."""
    stage = Stage()
    stage.submit("a", gated=True, edges=(OUT,))
    stage.deliver_nothing("a")
    stage.failures.append(("a", PayloadError("cannot be stored").to_wire()))
    stage.step()
    assert stage.ends("a") == [FinishReason.ERROR]
    assert stage.error_code("a") == PayloadError.code
    stage.check_empty()


def test_a_repeated_ref_is_not_fetched_again_and_keeps_its_key() -> None:
    stage = Stage()
    stage.submit("a", gated=True)
    stage.deliver("a", plan(1, 2))
    stage.deliver("a", plan(1, 2))
    stage.drain()
    assert sum(len(work.fetches) for work in stage.works) == 1
    assert [key for work in stage.works for key in work.discards] == []
    stage.check_empty()


@pytest.mark.parametrize("when", ["unknown", "running", "ended"])
def test_a_late_ref_is_discarded(when: str) -> None:
    """Its payload is freed; nothing else happens."""
    stage = Stage()
    if when != "unknown":
        stage.submit("a", gated=True, max_tokens=3)
        stage.deliver("a", plan(1, 2))
        stage.step()
        stage.step()
    if when == "ended":
        stage.drain()
    ref = stage.deliver("a", seq=1)
    assert stage.has_work
    stage.drain()
    assert [key for work in stage.works for key in work.discards] == [ref.key]
    stage.check_empty()


def test_a_ref_of_another_edge_is_discarded() -> None:
    stage = Stage()
    stage.submit("a", gated=True)
    stage.scheduler.deliver("a", Ref("p", "another", 0, end=True, key="k"))
    stage.step()
    assert stage.works[0].discards == ["k"]
    assert stage.works[0].fetches == []
    assert stage.ends("a") == []


def test_a_payload_that_was_not_fetched_yet_is_freed_with_its_request() -> None:
    """AR-INV-006: the worker is not asked to plan a prompt that nobody will use."""
    stage = Stage()
    stage.submit("a", gated=True)
    ref = stage.deliver("a", plan(1))
    stage.abort("a")
    stage.drain()
    assert [fetch for work in stage.works for fetch in work.fetches] == []
    assert [key for work in stage.works for key in work.discards] == [ref.key]
    stage.check_empty()


# --- prompts that cannot be -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (plan(*([1] * 1024)), InputTooLongError),
        (plan(), AdapterError),
        (plan(1, -1), AdapterError),
        (plan(1, VOCAB), AdapterError),
        (PayloadError("the payload is corrupt"), PayloadError),
    ],
    ids=["too long", "empty", "negative", "beyond the vocabulary", "worker failed"],
)
@BOTH
def test_a_bad_plan_ends_its_request_alone(
    cls: type[ARScheduler], answer: object, error: type[AntiphonError]
) -> None:
    """C63, C64: batch-mates and the engine go on."""
    stage = Stage(cls)
    stage.submit("bad", gated=True)
    stage.submit("good", gated=True, max_tokens=3)
    stage.submit("plain", max_tokens=3)
    stage.deliver("bad", answer)  # type: ignore[arg-type]
    stage.deliver("good", plan(1, 2))
    stage.drain()
    assert stage.ends("bad") == [FinishReason.ERROR]
    assert stage.error_code("bad") == error.code
    for uid in ("good", "plain"):
        assert stage.ends(uid) == [FinishReason.LENGTH]
        assert len(stage.outcomes[uid].tokens) == 3
    stage.check_empty()


def test_the_longest_prompt_leaves_room_for_one_token() -> None:
    stage = Stage(max_num_batched_tokens=2048)
    stage.submit("a", gated=True)
    stage.deliver("a", plan(*([1] * 1023)))
    stage.drain()
    assert stage.ends("a") == [FinishReason.LENGTH]
    assert len(stage.outcomes["a"].tokens) == 1


def test_the_same_id_twice_is_refused_while_it_lives() -> None:
    """C87."""
    stage = Stage()
    stage.submit("a", gated=True)
    with pytest.raises(DuplicateRequestError):
        stage.submit("a", gated=True)


def test_an_id_can_be_used_again_after_its_end() -> None:
    """C87. The ref of the first life is not taken for the second."""
    stage = Stage()
    stage.submit("a", gated=True)
    stage.abort("a")
    stage.drain()
    late = stage.deliver("a")
    stage.drain()
    assert stage.works[-1].discards == [late.key]
    stage.submit("a", gated=True, max_tokens=2)
    stage.deliver("a", plan(1))
    stage.drain()
    assert stage.ends("a") == [FinishReason.LENGTH]


# --- deadlines ------------------------------------------------------------------------------------


@BOTH
def test_a_wait_that_is_too_long_ends_with_a_typed_error(cls: type[ARScheduler]) -> None:
    """C9, C12: also when it is the only request and the engine was asleep."""
    clock = ManualClock()
    stage = Stage(cls, clock=clock)
    stage.submit("a", gated=True, timeout_s=5.0)
    assert stage.scheduler.next_due() == 5.0
    clock.advance(4.9)
    assert not stage.has_work
    clock.advance(0.1)
    assert stage.has_work
    stage.drain()
    assert stage.ends("a") == [FinishReason.ERROR]
    assert stage.error_code("a") == StageInputTimeout.code
    error = stage.outcomes["a"].error
    assert error is not None
    assert f"'{EDGE}'" in error.message
    assert "5.0 s" in error.message
    stage.check_empty()


@BOTH
def test_others_go_on_when_one_has_waited_too_long(cls: type[ARScheduler]) -> None:
    clock = ManualClock()
    stage = Stage(cls, clock=clock)
    stage.submit("short", gated=True, timeout_s=1.0)
    stage.submit("long", gated=True, timeout_s=10.0)
    stage.submit("ever", gated=True, timeout_s=0.0)
    stage.submit("plain", max_tokens=4)
    stage.step()
    clock.advance(1.0)
    stage.drain()
    assert stage.ends("short") == [FinishReason.ERROR]
    assert stage.ends("plain") == [FinishReason.LENGTH]
    clock.advance(1e6)
    stage.drain()
    assert stage.ends("long") == [FinishReason.ERROR]
    assert stage.ends("ever") == []
    stage.deliver("ever", plan(1))
    stage.drain()
    assert stage.ends("ever") == [FinishReason.LENGTH]
    stage.check_empty()


def test_the_deadline_counts_from_the_last_progress() -> None:
    """A ref is progress: the wait for its payload has the full time again."""
    clock = ManualClock()
    stage = Stage(clock=clock)
    stage.submit("a", gated=True, timeout_s=5.0)
    clock.advance(4.0)
    stage.deliver("a", plan(1))
    assert stage.scheduler.next_due() == 9.0
    stage.drain()
    assert stage.scheduler.next_due() is None
    assert stage.ends("a") == [FinishReason.LENGTH]


def test_a_timeout_while_the_payload_is_on_its_way() -> None:
    """The plan that comes after it is dropped; the error names the chunk that had been seen."""
    clock = ManualClock()
    stage = Stage(AsyncARScheduler, clock=clock)
    stage.submit("plain", max_tokens=6)
    stage.step()
    stage.submit("a", gated=True, timeout_s=5.0)
    stage.deliver("a", plan(1))
    stage.step()
    assert stage.ends("a") == []
    clock.advance(5.0)
    stage.drain()
    outcome = stage.outcomes["a"]
    if outcome.ends == [FinishReason.ERROR]:
        assert outcome.error is not None
        assert "the last chunk was 0" in outcome.error.message
    else:  # the plan had come first
        assert outcome.ends == [FinishReason.LENGTH]
    stage.check_empty()


def test_an_error_of_a_request_without_input_is_not_one() -> None:
    """An adapter may refuse its input: the request ends, with the adapter's error."""
    stage = Stage()
    stage.submit("a", gated=True)
    stage.deliver("a", EmptyInputError("nothing to speak"))
    stage.drain()
    assert stage.error_code("a") == EmptyInputError.code
    stage.check_empty()
