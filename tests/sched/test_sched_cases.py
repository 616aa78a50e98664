"""Cases from the field that need a scheduler and nothing else."""

from __future__ import annotations

import random

import pytest
from sched_core import sampled
from sched_engine import OUT, Outcome, Stage, plan
from sched_worker import Given
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.engine import FinishReason
from vllm.v1.request import Request, RequestStatus

from antiphon.errors import PayloadError
from antiphon.sched.ar import ARScheduler, AsyncARScheduler
from antiphon.upstream.kv_connector import CacheLoads

BOTH = pytest.mark.parametrize("cls", [ARScheduler, AsyncARScheduler], ids=["sync", "async"])


# --- aborts ---------------------------------------------------------------------------------------


def _constrained(uid: str) -> Request:
    """A request whose grammar is not compiled: upstream passes it over in its queue."""
    params = SamplingParams(max_tokens=5, structured_outputs=StructuredOutputsParams(regex="a+"))
    params.update_from_generation_config({}, None)
    return Request(uid, [1, 2, 3], params, None, arrival_time=0.0)


@BOTH
def test_a_request_that_waits_for_its_grammar_can_be_aborted(cls: type[ARScheduler]) -> None:
    """C1: upstream's own reason to skip a request that waits."""
    stage = Stage(cls, max_num_seqs=2)
    stage.submit("other", max_tokens=12)
    request = _constrained("v")
    stage.scheduler.coordinator.expect(
        "v", wait=None, edges=(), params={}, num_prompt_tokens=3, epoch=0
    )
    stage.scheduler.add_request(request)
    stage.outcomes["v"] = Outcome()
    for _ in range(3):
        stage.step()
    assert request.status is RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    stage.abort("v")
    stage.abort("v")
    for _ in range(5):
        stage.step()
    stage.drain()
    assert stage.ends("v") == [FinishReason.ABORT]
    assert stage.finished.count("v") == 1
    assert len(stage.outcomes["other"].tokens) == 12
    stage.check_empty()


@BOTH
def test_a_thousand_requests_aborted_at_random(cls: type[ARScheduler]) -> None:
    """C2: in every state, before and after their step is processed; nobody else loses a token."""
    rng = random.Random(2)
    stage = Stage(cls, num_blocks=24, max_num_seqs=4, max_num_batched_tokens=24)
    alive: dict[str, int] = {}  # uid: steps after which it is aborted; -1: never
    lengths: dict[str, int] = {}
    for number in range(1000):
        uid = f"r{number}"
        gated, lengths[uid] = rng.random() < 0.3, rng.randint(1, 40)
        stage.submit(uid, lengths[uid], gated=gated, edges=(OUT,), max_tokens=rng.randint(1, 9))
        if gated and rng.random() < 0.7:
            stage.deliver(uid, plan(*range(1, lengths[uid] + 1)))
            alive[uid] = rng.randint(-1, 6)
        else:
            alive[uid] = rng.randint(0, 6) if gated else rng.randint(-1, 6)
        for _ in range(rng.randint(0, 3)):
            _tick(stage, alive, rng)
    while alive:
        _tick(stage, alive, rng)
    stage.drain()
    ends = [stage.ends(uid) for uid in lengths]
    assert 200 < ends.count([FinishReason.ABORT]) < 950
    for uid, outcome in stage.outcomes.items():
        assert outcome.tokens == sampled(uid, lengths[uid], len(outcome.tokens))
        assert stage.finished.count(uid) == 1
    stage.scheduler.used(OUT, [ref.key for ref in stage.sent if ref.key is not None])
    stage.check_empty()


def _tick(stage: Stage, alive: dict[str, int], rng: random.Random) -> None:
    """A step in which those are aborted whose time has come, before or after it is processed."""
    due = [uid for uid, left in alive.items() if left == 0]
    for uid in alive:
        alive[uid] -= 1
    during = rng.random() < 0.5
    stage.step(before_update=(lambda: stage.abort(*due)) if during else None)
    stage.abort(*due)
    for uid in [uid for uid in alive if uid not in stage.scheduler.requests]:
        del alive[uid]


@BOTH
def test_one_abort_among_a_hundred_requests(cls: type[ARScheduler]) -> None:
    """C5: those before and after it give what they would have given."""
    stage = Stage(cls, max_num_seqs=1)
    for number in range(100):
        stage.submit(f"r{number}", max_tokens=4)
        if number == 40:
            stage.step()
            stage.abort("r40")
        stage.drain()
    for number in range(100):
        expected = [FinishReason.ABORT if number == 40 else FinishReason.LENGTH]
        assert stage.ends(f"r{number}") == expected
        if number != 40:
            assert stage.outcomes[f"r{number}"].tokens == sampled(f"r{number}", 10, 4)
    stage.check_empty()


# --- what the worker reports ----------------------------------------------------------------------


@BOTH
def test_what_a_step_without_tokens_brings_is_taken_in_at_once(cls: type[ARScheduler]) -> None:
    """C10, C9: and is not found by the request that comes next under that name."""
    stage = Stage(cls)
    stage.submit("a", gated=True)
    stage.failures.append(("a", PayloadError("cannot be read").to_wire()))
    stage.scheduler.coordinator.discard(["wakes the engine"])
    done = stage.step()
    assert done.scheduled is not None
    assert done.scheduled.total_num_scheduled_tokens == 0
    stage.drain()
    assert stage.ends("a") == [FinishReason.ERROR]
    assert stage.error_code("a") == PayloadError.code
    stage.check_empty()
    stage.finished.clear()
    stage.scheduler.abandon(["a"])
    stage.submit("a", max_tokens=3)
    stage.drain()
    assert stage.ends("a") == [FinishReason.LENGTH]
    assert stage.scheduler.coordinator.take_events().errors == {}
    stage.check_empty()


# --- sessions -------------------------------------------------------------------------------------


@BOTH
def test_only_what_is_fed_goes_on_by_itself(cls: type[ARScheduler]) -> None:
    """C43: a session rests from the end of its segment to its next update, whether or not it sends;
    a consumer goes on with each of its chunks. No placeholder ever stands for a token.
    """
    stage = Stage(cls)
    stage.submit("quiet", 5, session=True, max_tokens=2)
    stage.submit("sends", 5, session=True, max_tokens=2, edges=(OUT,))
    stage.submit("fed", stream=True, max_tokens=7, edges=(OUT,))
    stage.deliver("fed", Given(plan(1, 2, 3), 1), seq=0, end=False)
    scheduled: list[str] = []

    def steps(count: int) -> list[str]:
        """Who is scheduled in that many steps."""
        scheduled.clear()
        for _ in range(count):
            done = stage.step()
            if done.scheduled is None:
                continue
            scheduled.extend(done.scheduled.num_scheduled_tokens)
            for new in done.scheduled.scheduled_new_reqs:
                assert min(new.prompt_token_ids or [0]) >= 0
        return scheduled

    steps(8)
    assert [end.uid for end in stage.segments] == ["quiet", "sends"]
    assert steps(5) == []
    for seq in range(1, 6):
        stage.deliver("fed", 1, seq=seq, end=seq == 5)
        assert set(steps(5)) == {"fed"}
    assert stage.ends("fed") == [FinishReason.LENGTH]
    stage.update("sends", 1, 9)
    assert set(steps(8)) == {"sends"}
    stage.abort("quiet", "sends")
    stage.drain()
    stage.check_empty()


@BOTH
def test_two_updates_before_the_segment_has_ended(cls: type[ARScheduler]) -> None:
    """C45: with the prefix cache, steps in flight and others in the batch, every prompt that
    reaches the worker is made of real tokens.
    """
    stage = Stage(cls, enable_prefix_caching=True, block_size=4)
    stage.submit("other", 13, max_tokens=30)
    stage.submit("s", 13, session=True, max_tokens=3)
    stage.step()
    stage.step()
    stage.update("s", 1, 90, 91)
    stage.update("s", 2, 92)
    stage.drain()
    base = [1 + i for i in range(13)]
    first = [*base, *sampled("s", 13, 2), 90, 91]
    second = [*first, *sampled("s", 17, 2), 92]
    assert stage.worker.prompts["s", 1] == first
    assert stage.worker.prompts["s", 2] == second
    assert stage.outcomes["s"].by_epoch[2] == sampled("s", len(second), 3)
    stage.abort("s")
    stage.drain()
    stage.check_empty()


# --- steps in flight, loads -----------------------------------------------------------------------


@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("edges", [(), (OUT,)], ids=["alone", "routed"])
def test_preemption_with_several_steps_in_flight(depth: int, edges: tuple[str, ...]) -> None:
    """C117: preempted again and again, each request gives what it gives alone, once."""
    stage = Stage(AsyncARScheduler, num_blocks=14, block_size=4, max_num_seqs=6, max_model_len=64)
    stage.depth = depth
    for number in range(8):
        stage.submit(f"r{number}", 6, max_tokens=20, edges=edges)
    stage.drain(1500)
    assert stage.preemptions > 3
    for number in range(8):
        assert stage.outcomes[f"r{number}"].tokens == sampled(f"r{number}", 6, 20)
        if edges:
            assert stage.updates(f"r{number}") == sampled(f"r{number}", 6, 20)
    stage.check_empty()


@BOTH
@pytest.mark.parametrize("given", [1, 16, 20, 31])
def test_a_cache_that_brings_less_than_is_here(cls: type[ARScheduler], given: int) -> None:
    """C96: nothing is loaded, and never a negative number of tokens; the request is served."""
    stage = Stage(cls, loads_caches=True, enable_prefix_caching=True)
    prompt = plan(*range(1, 41))
    stage.submit("a", gated=True, max_tokens=1)
    stage.deliver("a", prompt)
    stage.drain()
    request = stage.submit("b", gated=True, max_tokens=3)
    stage.deliver("b", Given(prompt, cached=given))
    loaded = []
    while stage.has_work:
        done = stage.step()
        if done.scheduled is not None and done.scheduled.kv_connector_metadata is not None:
            orders = done.scheduled.kv_connector_metadata
            assert isinstance(orders, CacheLoads)
            loaded += [load for load in orders.loads if load.uid == "b"]
            if done.scheduled.scheduled_new_reqs:
                assert done.scheduled.num_scheduled_tokens["b"] == 40 - 32
    assert [load for load in loaded if load.first < load.stop] == []
    assert request.is_finished()
    assert stage.outcomes["b"].tokens == sampled("b", 40, 3)
    stage.check_empty()
