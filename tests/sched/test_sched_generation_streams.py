"""Generation stages on stream edges: one forward per chunk, streams served in turn."""

from __future__ import annotations

from typing import Any

import pytest
from sched_engine import Stage, plan
from sched_worker import OUT
from vllm.v1.engine import FinishReason

from antiphon.core.budget import EdgeLimits
from antiphon.core.prompt_plan import PromptPlan
from antiphon.core.tickets import Ended
from antiphon.errors import InputTooLongError, PayloadError, StageInputTimeout, StageStepError
from antiphon.sched.generation import GenerationScheduler
from antiphon.testing.clock import ManualClock


def make_stage(budget: int = 64, **kw: Any) -> Stage:
    kw.setdefault("max_num_seqs", min(8, budget))
    return Stage(GenerationScheduler, max_num_batched_tokens=budget, **kw)


def batches(stage: Stage) -> list[dict[str, int]]:
    """Tokens per request, step by step, until there is nothing left to do."""
    found = []
    while stage.has_work:
        done = stage.step()
        if done.scheduled is not None and done.scheduled.num_scheduled_tokens:
            found.append(dict(done.scheduled.num_scheduled_tokens))
    return found


def chunk(number: int) -> PromptPlan:
    return plan(*[number] * 4)


# --- chunk by chunk -------------------------------------------------------------------------------


def test_each_chunk_is_one_forward_and_the_last_one_ends_the_request() -> None:
    """An output that belongs to a chunk is not the request's end."""
    stage = make_stage()
    stage.submit("a", stream=True)
    for seq, length in enumerate((3, 5, 2)):
        stage.deliver("a", plan(*[1] * length), seq=seq, end=seq == 2)
    assert batches(stage) == [{"a": 3}, {"a": 5}, {"a": 2}]
    assert stage.ends("a") == [FinishReason.STOP]
    assert stage.worker.prompts["a", 0] == [1, 1]
    stage.check_empty()


def test_a_stream_sleeps_between_its_chunks_and_holds_nothing() -> None:
    """Nothing strands it: a chunk that arrives is run, however long that took."""
    stage = make_stage()
    stage.submit("a", stream=True)
    for seq in range(3):
        stage.deliver("a", chunk(seq), seq=seq, end=False)
        assert batches(stage) == [{"a": 4}]
        assert not stage.has_work
        assert stage.free_blocks == stage.total_blocks
        assert stage.ends("a") == []
    stage.deliver("a", chunk(3), seq=3)
    assert batches(stage) == [{"a": 4}]
    assert stage.ends("a") == [FinishReason.STOP]
    stage.check_empty()


def test_a_chunk_that_comes_during_a_forward_is_run_after_it() -> None:
    stage = make_stage(budget=4)
    stage.submit("a", stream=True)
    stage.deliver("a", plan(*[1] * 10), seq=0, end=False)
    stage.step()
    stage.step()
    stage.deliver("a", chunk(2), seq=1)
    assert batches(stage) == [{"a": 4}, {"a": 2}, {"a": 4}]
    stage.check_empty()


@pytest.mark.parametrize("when", ["resting", "running", "queued"])
def test_an_empty_end_after_chunks_ends_the_request(when: str) -> None:
    """C115. The chunk that is under way still brings its output."""
    stage = make_stage(max_num_seqs=1)
    stage.submit("b", stream=True)
    stage.submit("a", stream=True)
    stage.deliver("a", chunk(1), seq=0, end=False)
    if when == "resting":
        batches(stage)
    elif when == "queued":
        stage.deliver("b", chunk(1), seq=0)
    stage.step()
    stage.deliver_nothing("a", seq=1)
    stage.drain()
    assert stage.fetched.count(("a", 1)) == 1
    assert stage.ends("a") == [FinishReason.STOP]
    assert stage.worker.prompts["a", 0] == [1] * 4
    stage.abort("b")
    stage.drain()
    stage.check_empty()


def test_an_empty_end_without_chunks_ends_the_request_at_once() -> None:
    """C115."""
    stage = make_stage()
    stage.submit("a", stream=True)
    stage.deliver_nothing("a")
    assert batches(stage) == []
    assert stage.ends("a") == [FinishReason.STOP]
    stage.check_empty()


def test_what_the_adapter_has_left_at_the_end_is_run_before_the_request_ends() -> None:
    """A stateful stage that owes a last chunk delivers it."""
    stage = make_stage()
    stage.submit("a", stream=True)
    stage.deliver("a", chunk(1), seq=0, end=False)
    stage.drain()
    stage.deliver_nothing("a", seq=1, answer=plan(7, 8))
    assert batches(stage) == [{"a": 2}]
    assert stage.ends("a") == [FinishReason.STOP]
    stage.check_empty()


def test_a_plan_without_tokens_is_run_with_one_placeholder() -> None:
    """The model is asked, as by a last chunk that only flushes."""
    stage = make_stage()
    stage.submit("a", stream=True)
    stage.deliver("a", chunk(1), seq=0, end=False)
    stage.deliver("a", plan(), seq=1)
    assert batches(stage) == [{"a": 4}, {"a": 1}]
    assert stage.worker.prompts["a", 0] == [0]
    stage.check_empty()


def test_chunks_that_the_adapter_absorbs_are_no_forward() -> None:
    stage = make_stage()
    stage.submit("a", stream=True)
    stage.deliver("a", 0, seq=0, end=False)
    stage.deliver("a", 0, seq=1, end=False)
    assert batches(stage) == []
    assert stage.used == ["key-a-0-0", "key-a-0-1"]
    stage.deliver("a", chunk(2), seq=2, end=False)
    stage.deliver("a", 0, seq=3)
    assert batches(stage) == [{"a": 4}]
    assert stage.ends("a") == [FinishReason.STOP]
    stage.check_empty()


def test_chunks_run_in_order_whatever_order_they_arrive_in() -> None:
    """C107."""
    stage = make_stage()
    stage.submit("a", stream=True)
    for seq in (2, 1, 0):
        stage.deliver("a", plan(*[1] * (seq + 1)), seq=seq, end=seq == 2)
    assert batches(stage) == [{"a": 1}, {"a": 2}, {"a": 3}]
    stage.check_empty()


def test_a_chunk_is_used_up_when_its_forward_has_brought_its_output() -> None:
    """C111: its memory is given back then, and not before."""
    stage = make_stage()
    stage.submit("a", stream=True)
    stage.deliver("a", chunk(1), seq=0, end=False)
    stage.deliver("a", chunk(1), seq=1, end=False)
    stage.step()  # both are taken in
    assert stage.used == []
    stage.step()
    assert stage.used == ["key-a-0-0"]
    stage.drain()
    assert stage.used == ["key-a-0-0", "key-a-0-1"]


def test_a_chunks_parameters_are_its_own() -> None:
    """What one chunk says is not said of the next."""
    stage = make_stage()
    request = stage.submit("a", stream=True, extra_args={"voice": "x"})
    seen = []
    for seq, extra in enumerate(({"left": 3}, {"right": 2}, {})):
        stage.deliver("a", PromptPlan((1, 2), extra=extra), seq=seq, end=seq == 2)
        stage.step()
        assert request.pooling_params is not None
        seen.append(request.pooling_params.extra_kwargs)
        stage.drain()
    assert seen == [{"voice": "x", "left": 3}, {"voice": "x", "right": 2}, {"voice": "x"}]
    stage.check_empty()


# --- turns ----------------------------------------------------------------------------------------


def test_streams_are_served_in_turn() -> None:
    stage = make_stage(budget=4)
    for uid in "abc":
        stage.submit(uid, stream=True)
        for seq in range(3):
            stage.deliver(uid, chunk(seq), seq=seq, end=seq == 2)
    assert batches(stage) == [{uid: 4} for uid in "abcabcabc"]
    stage.check_empty()


def test_a_first_chunk_stands_where_its_request_arrived() -> None:
    """A later chunk stands at the end: who has been served waits for those who have not."""
    stage = make_stage(budget=4)
    stage.submit("early", stream=True)
    for uid in "ab":
        stage.submit(uid, stream=True)
        for seq in range(2):
            stage.deliver(uid, chunk(seq), seq=seq, end=seq == 1)
    stage.step()
    stage.deliver("early", chunk(0), seq=0)
    order = [uid for batch in batches(stage) for uid in batch]
    assert order == ["a", "early", "b", "a", "b"]
    stage.check_empty()


def test_a_step_takes_a_chunk_of_every_stream_that_fits() -> None:
    stage = make_stage(budget=8)
    for uid in "abc":
        stage.submit(uid, stream=True)
        stage.deliver(uid, chunk(1))
    assert batches(stage) == [{"a": 4, "b": 4}, {"c": 4}]
    stage.check_empty()


# --- the window of active streams -----------------------------------------------------------------


def two_of(*uids: str, **kw: Any) -> Stage:
    """Streams with a window of two; each has brought its first chunk."""
    stage = make_stage(active_streams=2, **kw)
    for uid in uids:
        stage.submit(uid, stream=True)
        stage.deliver(uid, chunk(0), seq=0, end=False)
    return stage


def test_streams_beyond_the_window_wait_until_one_is_over() -> None:
    """C77: those in it are served chunk after chunk meanwhile."""
    stage = two_of("a", "b", "c")
    for seq in (1, 2):
        for uid in "ab":
            stage.deliver(uid, chunk(seq), seq=seq, end=seq == 2)
    order = [sorted(batch) for batch in batches(stage)]
    assert order == [["a", "b"], ["a", "b"], ["a", "b"], ["c"]]


def test_the_window_leaves_the_stage_no_idle_step() -> None:
    """A stream that is slow upstream does not hold up those that wait."""
    stage = two_of("a", "b", "c", "d")
    order = [sorted(batch) for batch in batches(stage)]
    assert order == [["a", "b"], ["c"], ["d"]]
    assert not stage.has_work


@pytest.mark.parametrize("how", ["finish", "abort", "fail", "worker", "timeout", "bad chunk"])
def test_a_stream_leaves_the_window_however_it_ends(how: str) -> None:
    """C62, C77: who waits is served beside the one that is still busy, not after it."""
    clock = ManualClock()
    stage = make_stage(active_streams=2, clock=clock, max_model_len=64)
    stage.submit("a", stream=True, timeout_s=5.0)
    stage.submit("busy", stream=True)
    stage.submit("next", stream=True)
    stage.deliver("a", chunk(0), seq=0, end=False)
    stage.drain()
    for seq in range(6):
        stage.deliver("busy", chunk(seq), seq=seq, end=seq == 5)
    stage.deliver("next", chunk(0))
    stage.step()
    match how:
        case "finish":
            stage.deliver_nothing("a", seq=1)
        case "abort":
            stage.abort("a")
        case "fail":
            stage.scheduler.fail_requests(["a"], StageStepError("broken"))
        case "worker":
            stage.failures.append(("a", PayloadError("corrupt").to_wire()))
        case "timeout":
            clock.advance(5.0)
        case "bad chunk":
            stage.deliver("a", plan(*[1] * 65), seq=1, end=False)
    assert {"busy": 4, "next": 4} in batches(stage)
    codes = {"fail": StageStepError, "worker": PayloadError, "timeout": StageInputTimeout}
    wanted = codes.get(how, InputTooLongError if how == "bad chunk" else None)
    assert stage.error_code("a") == (None if wanted is None else wanted.code)
    stage.check_empty()


def test_many_streams_one_after_the_other_find_the_window_free() -> None:
    """C62: twenty completions leave nothing behind."""
    stage = make_stage(active_streams=2)
    stage.submit("busy", stream=True)
    for number in range(20):
        uid = f"r{number}"
        stage.submit(uid, stream=True)
        stage.deliver("busy", chunk(number), seq=number, end=number == 19)
        stage.deliver(uid, chunk(0))
        assert batches(stage) == [{"busy": 4, uid: 4}]
    stage.check_empty()


@pytest.mark.parametrize("uids", ["abcdef", "bcdefg", "defghi"])
def test_streams_in_the_window_and_before_it_can_end_together(uids: str) -> None:
    """C1: who gets the place of one that ends may end in the same moment."""
    stage = two_of("x", *"abcdefghi", budget=4)
    stage.step()
    stage.step()
    stage.abort(*uids, "x")
    batches(stage)
    left = set("abcdefghi") - set(uids)
    assert stage.scheduler.requests.keys() == left
    for uid in left:
        stage.deliver(uid, chunk(9), seq=1)
    batches(stage)
    stage.check_empty()


def test_a_stream_that_waits_for_the_window_can_be_aborted() -> None:
    stage = two_of("a", "b", "c", budget=4)
    stage.step()
    stage.step()
    stage.abort("c")
    for uid in "ab":
        stage.deliver_nothing(uid, seq=1)
    assert "c" not in {uid for batch in batches(stage) for uid in batch}
    stage.check_empty()


# --- limits, errors -------------------------------------------------------------------------------


def test_an_atomic_chunk_over_the_budget_is_a_typed_error() -> None:
    """C59: the chunks before it have been served, the others go on."""
    stage = make_stage(budget=8, atomic_inputs=True)
    for uid in "ab":
        stage.submit(uid, stream=True)
        stage.deliver(uid, chunk(0), seq=0, end=False)
    stage.deliver("a", plan(*[1] * 9), seq=1)
    stage.deliver("b", plan(*[1] * 8), seq=1)
    assert batches(stage) == [{"a": 4, "b": 4}, {"b": 8}]
    assert stage.ends("a") == [FinishReason.ERROR]
    assert stage.error_code("a") == InputTooLongError.code
    assert stage.ends("b") == [FinishReason.STOP]
    stage.check_empty()


def test_a_chunk_over_the_budget_is_split_over_steps_otherwise() -> None:
    stage = make_stage(budget=8)
    stage.submit("a", stream=True)
    stage.deliver("a", plan(*[1] * 20), seq=0, end=False)
    stage.deliver("a", chunk(1), seq=1)
    assert batches(stage) == [{"a": 8}, {"a": 8}, {"a": 4}, {"a": 4}]
    stage.check_empty()


def test_a_stream_waits_for_its_next_chunk_no_longer_than_its_deadline() -> None:
    clock = ManualClock()
    stage = make_stage(clock=clock)
    stage.submit("a", stream=True, timeout_s=5.0)
    stage.deliver("a", chunk(0), seq=0, end=False)
    stage.drain()
    clock.advance(4.0)
    stage.deliver("a", chunk(1), seq=1, end=False)
    stage.drain()
    clock.advance(4.9)
    assert not stage.has_work
    clock.advance(0.1)
    stage.drain()
    assert stage.error_code("a") == StageInputTimeout.code
    assert "the last chunk was 1" in str(stage.outcomes["a"].error)
    stage.check_empty()


@pytest.mark.parametrize("when", ["gated", "queued", "running", "resting"])
def test_a_stream_can_be_aborted_in_every_state(when: str) -> None:
    """C1, C2, C4."""
    stage = make_stage(budget=4)
    stage.submit("b", stream=True)
    stage.deliver("b", plan(*[2] * 9))
    stage.submit("a", stream=True)
    if when != "gated":
        stage.deliver("a", plan(*[1] * 9), seq=0, end=False)
    for _ in range({"gated": 1, "queued": 2, "running": 5, "resting": 9}[when]):
        stage.step()
    stage.abort("a")
    stage.abort("a")
    stage.drain()
    assert stage.ends("a") == [FinishReason.ABORT]
    assert stage.ends("b") == [FinishReason.STOP]
    assert stage.scheduler.num_waiting_for_streaming_input == 0
    stage.check_empty()


# --- a generation stage that produces -------------------------------------------------------------


def test_a_full_edge_parks_a_stream_between_its_chunks() -> None:
    """Also when its next chunk is there already; room does not wake one that has none."""
    stage = make_stage(limits=EdgeLimits(request_chunks=1))
    stage.submit("a", stream=True, edges=(OUT,))
    for seq in range(2):
        stage.deliver("a", chunk(seq), seq=seq, end=False)
    stage.step()
    stage.worker.send("a")
    assert batches(stage) == [{"a": 4}]
    assert not stage.has_work
    stage.consume()
    assert batches(stage) == [{"a": 4}]
    stage.worker.send("a")
    stage.scheduler.coordinator.discard(["wakes the engine"])
    stage.step()
    stage.consume()
    assert batches(stage) == []
    stage.deliver_nothing("a", seq=2)
    stage.drain()
    assert [e for w in stage.works for e in w.ended] == [Ended("a", True, 4)]
    stage.check_empty()


def test_a_parked_stream_leaves_the_window_to_those_that_wait() -> None:
    stage = make_stage(limits=EdgeLimits(request_chunks=1), active_streams=1, budget=4)
    for uid in "ab":
        stage.submit(uid, stream=True, edges=(OUT,))
        for seq in range(2):
            stage.deliver(uid, chunk(seq), seq=seq, end=seq == 1)
    stage.step()
    stage.worker.send("a")
    assert batches(stage) == [{"a": 4}, {"b": 4}, {"b": 4}]
    stage.consume()
    assert batches(stage) == [{"a": 4}]
    stage.check_empty()


@pytest.mark.parametrize("size", [1, 2])
def test_the_windows_bound_holds_when_a_slot_changes_hands(size: int) -> None:
    """C77: no step serves more streams than the window has slots."""
    stage = make_stage(active_streams=size)
    uids = "abcdef"
    for uid in uids:
        stage.submit(uid, stream=True)
        for seq in range(3):
            stage.deliver(uid, chunk(seq), seq=seq, end=seq == 2)
    steps = batches(stage)
    assert max(len(step) for step in steps) == size
    assert sum(len(step) for step in steps) == 3 * len(uids)
    assert all(stage.ends(uid) == [FinishReason.STOP] for uid in uids)
    stage.check_empty()
