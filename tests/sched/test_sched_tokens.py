"""What the worker is told of accepted tokens, tickets and ends. The random workloads of the
conformance test check the same for every token of every request."""

from __future__ import annotations

import pytest
from sched_core import token_at
from sched_engine import OUT, Stage, plan
from vllm.v1.engine import FinishReason
from vllm.v1.request import RequestStatus

from antiphon.core.tickets import Ended, Ticket
from antiphon.errors import StageStepError
from antiphon.sched.ar import ARScheduler, AsyncARScheduler
from antiphon.upstream.envelopes import work_of

BOTH = pytest.mark.parametrize("cls", [ARScheduler, AsyncARScheduler], ids=["sync", "async"])


@BOTH
def test_a_ticket_goes_out_once_before_the_requests_first_token(cls: type[ARScheduler]) -> None:
    stage = Stage(cls)
    stage.submit("a", max_tokens=4, edges=(OUT,))
    stage.drain()
    assert [t for w in stage.works for t in w.tickets] == [Ticket("a", (OUT,), {})]
    assert stage.works[0].tickets
    assert not stage.works[0].tokens


@BOTH
def test_every_token_is_told_once_and_in_order(cls: type[ARScheduler]) -> None:
    """C17. The last one too, though no step follows that would carry it for its own sake."""
    stage = Stage(cls)
    stage.submit("a", n=6, max_tokens=5, edges=(OUT,))
    stage.submit("b", n=9, max_tokens=3, edges=(OUT,))
    stage.drain()
    for uid, n in (("a", 6), ("b", 9)):
        assert stage.updates(uid) == stage.outcomes[uid].tokens
        counts = [w.tokens[uid].num_tokens for w in stage.works if uid in w.tokens]
        assert counts[-1] == n + len(stage.outcomes[uid].tokens)
        assert counts == sorted(counts)
    stage.check_empty()


def test_tokens_of_two_results_before_the_next_step_travel_together() -> None:
    stage = Stage(AsyncARScheduler)
    stage.submit("a", n=6, max_tokens=9, edges=(OUT,))
    stage.step()
    results = [stage.in_flight.pop()]
    scheduled = stage.scheduler.schedule()
    results.append((scheduled, stage.run(scheduled)))
    for result in results:
        stage.scheduler.update_from_output(*result)
    work = work_of(stage.scheduler.schedule())
    assert work is not None
    assert work.tokens["a"].token_ids == [token_at("a", 6), token_at("a", 7)]
    assert work.tokens["a"].num_tokens == 8


@BOTH
def test_the_last_tokens_come_with_the_end_or_before(cls: type[ARScheduler]) -> None:
    """C68."""
    stage = Stage(cls)
    stage.submit("a", n=6, max_tokens=5, edges=(OUT,))
    stage.drain()
    order = [(bool(w.tokens), bool(w.ended)) for w in stage.works if w.tokens or w.ended]
    assert order[-1] == (True, True)
    assert [ended for _, ended in order].count(True) == 1


@BOTH
def test_preemption_repeats_and_loses_no_token(cls: type[ARScheduler]) -> None:
    """C117: whatever is in flight when it happens."""
    calm = Stage(cls)
    calm.submit("a", n=6, max_tokens=12, edges=(OUT,))
    calm.drain()
    stage = Stage(cls)
    stage.submit("a", n=6, max_tokens=12, edges=(OUT,))
    for number in range(40):
        if number % 4 == 3 and "a" in stage.scheduler.requests:
            request = stage.scheduler.requests["a"]
            if request.status is RequestStatus.RUNNING:
                stage.scheduler.reset_prefix_cache(True)
        if stage.has_work:
            stage.step()
    assert stage.outcomes["a"].tokens == calm.outcomes["a"].tokens
    assert stage.updates("a") == calm.updates("a")
    stage.check_empty()


@pytest.mark.parametrize("end", ["length", "stop", "abort", "error"])
@BOTH
def test_an_end_says_whether_what_was_collected_counts(cls: type[ARScheduler], end: str) -> None:
    stage = Stage(cls, token=lambda _uid, position: position % 5)
    stops = [2] if end == "stop" else []
    stage.submit("a", n=5, max_tokens=6, stop_token_ids=stops, edges=(OUT,))
    for _ in range(3):
        stage.step()
    if end == "abort":
        stage.abort("a")
    elif end == "error":
        stage.scheduler.fail_requests(["a"], StageStepError("broken"))
    stage.drain()
    (ended,) = [e for w in stage.works for e in w.ended]
    assert ended.keep is (end in ("length", "stop"))
    assert ended.num_tokens == 5 + len(stage.outcomes["a"].tokens)
    assert stage.updates("a") == stage.outcomes["a"].tokens
    stage.check_empty()


def test_a_planned_prompt_counts_with_its_own_length() -> None:
    stage = Stage()
    stage.submit("a", gated=True, max_tokens=2, edges=(OUT,))
    stage.deliver("a", plan(1, 2, 3, 4))
    stage.drain()
    assert [w.tokens["a"].num_tokens for w in stage.works if w.tokens] == [5, 6]
    assert [e for w in stage.works for e in w.ended] == [Ended("a", True, 6)]


@BOTH
def test_requests_without_edges_cost_the_worker_nothing(cls: type[ARScheduler]) -> None:
    """C83: a text-only request has no ticket, no token updates and no end."""
    stage = Stage(cls)
    stage.submit("text", max_tokens=5)
    while stage.has_work:
        done = stage.step()
        assert done.scheduled is None or work_of(done.scheduled) is None
    assert stage.works == []
    assert stage.ends("text") == [FinishReason.LENGTH]


def test_text_only_requests_do_not_appear_beside_routed_ones() -> None:
    stage = Stage()
    stage.submit("text", max_tokens=5)
    stage.submit("voice", max_tokens=5, edges=(OUT,))
    stage.drain()
    assert {uid for w in stage.works for uid in w.tokens} == {"voice"}
    assert [e.uid for w in stage.works for e in w.ended] == ["voice"]


def test_a_request_that_upstream_refuses_is_taken_back() -> None:
    """The ticket and its end cancel each other in the worker."""
    stage = Stage()
    stage.scheduler.coordinator.expect("a", wait=None, edges=(OUT,), params={}, num_prompt_tokens=3)
    stage.scheduler.coordinator.forget("a")
    stage.drain()
    (work,) = stage.works
    assert [t.uid for t in work.tickets] == [e.uid for e in work.ended] == ["a"]
    assert not work.ended[0].keep
    assert len(stage.scheduler.coordinator) == 0
    stage.check()
