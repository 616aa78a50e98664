"""How requests end before their time: aborts in every state, worker failures, broken steps,
logprobs that break their contract."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sched_core import logprobs_for
from sched_engine import OUT, Stage, plan
from vllm.v1.engine import FinishReason
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.request import RequestStatus

from antiphon.core.tickets import Ended
from antiphon.errors import PayloadError, SampledLogprobContractError, StageStepError
from antiphon.sched.ar import ARScheduler, AsyncARScheduler

BOTH = pytest.mark.parametrize("cls", [ARScheduler, AsyncARScheduler], ids=["sync", "async"])


# --- aborts: each brings the victim "v" into a state ----------------------------------------------


def gated(stage: Stage) -> None:
    stage.submit("v", gated=True, edges=(OUT,))
    stage.step()


def announced(stage: Stage) -> None:
    """The fetch order has not left yet."""
    stage.submit("v", gated=True, edges=(OUT,))
    stage.deliver("v", plan(1, 2))


def fetching(stage: Stage) -> None:
    """The order has left; in async scheduling its answer has not been processed."""
    announced(stage)
    stage.step()


def waiting(stage: Stage) -> None:
    stage.submit("v", edges=(OUT,))


def opened(stage: Stage) -> None:
    """Planned, and waiting for a place in the batch."""
    for uid in ("x", "y"):
        stage.submit(uid, max_tokens=6)
    for _ in range(2):
        stage.step()
    fetching(stage)
    stage.step()
    assert stage.scheduler.requests["v"] in stage.scheduler.waiting


def prefilling(stage: Stage) -> None:
    """Half of its prompt is computed."""
    stage.submit("v", n=60, edges=(OUT,))
    stage.step()
    assert stage.scheduler.requests["v"].is_prefill_chunk


def running(stage: Stage) -> None:
    stage.submit("v", edges=(OUT,), max_tokens=50)
    for _ in range(4):
        stage.step()
    assert stage.scheduler.requests["v"].status is RequestStatus.RUNNING


def preempted(stage: Stage) -> None:
    """In async scheduling its last frames are still in flight."""
    stage.submit("v", edges=(OUT,), max_tokens=50)
    for _ in range(4):
        stage.step()
    stage.scheduler.reset_prefix_cache(True)
    assert stage.scheduler.requests["v"].status is RequestStatus.PREEMPTED


STATES = [gated, announced, fetching, waiting, opened, prefilling, running, preempted]


@pytest.mark.parametrize("reach", STATES, ids=lambda f: f.__name__)
@BOTH
def test_a_request_can_be_aborted_in_every_state(
    cls: type[ARScheduler], reach: Callable[[Stage], None]
) -> None:
    """C1, C2: nothing raises, its id reaches the worker once, the others advance."""
    stage = Stage(cls, max_num_batched_tokens=32, max_num_seqs=3)
    stage.submit("other", max_tokens=12)
    reach(stage)
    before = list(stage.outcomes["v"].tokens)
    stage.abort("v")
    stage.abort("v")  # twice is once
    for _ in range(5):
        stage.step()
    assert stage.outcomes["v"].tokens == before
    assert stage.ends("v") == [FinishReason.ABORT]
    assert stage.finished.count("v") == 1
    stage.drain()
    assert [e.keep for w in stage.works for e in w.ended if e.uid == "v"] == [False]
    assert len(stage.outcomes["other"].tokens) == 12
    stage.check_empty()


@pytest.mark.parametrize("reach", [running, preempted, prefilling], ids=lambda f: f.__name__)
def test_an_abort_while_its_batch_is_on_the_device(reach: Callable[[Stage], None]) -> None:
    """C2: its frames come back after it is gone."""
    stage = Stage(AsyncARScheduler, max_num_batched_tokens=32)
    stage.submit("other", max_tokens=12)
    reach(stage)
    assert stage.in_flight
    stage.step(before_update=lambda: stage.abort("v"))
    stage.drain()
    assert stage.ends("v") == [FinishReason.ABORT]
    assert len(stage.outcomes["other"].tokens) == 12
    stage.check_empty()


def test_an_abort_lets_the_next_request_in() -> None:
    """C5, C67."""
    stage = Stage(max_num_seqs=1)
    for number in range(20):
        stage.submit(f"r{number}", max_tokens=2, gated=number % 2 == 1)
        if number % 2 == 1:
            stage.deliver(f"r{number}", plan(1))
        stage.step()
        if number % 3 == 0:
            stage.abort(f"r{number}")
    stage.drain()
    lengths = [stage.ends(f"r{n}") == [FinishReason.LENGTH] for n in range(20)]
    assert lengths == [n % 3 != 0 for n in range(20)]
    stage.check_empty()


# --- failures reported by the worker, and broken steps --------------------------------------------


@BOTH
def test_a_failure_that_the_worker_reports_ends_its_request_alone(cls: type[ARScheduler]) -> None:
    """C63, C64."""
    stage = Stage(cls)
    stage.submit("bad", max_tokens=20, edges=(OUT,))
    stage.submit("good", max_tokens=6)
    stage.step()
    stage.step()
    stage.failures.append(("bad", PayloadError("cannot be stored").to_wire()))
    stage.drain()
    assert stage.ends("bad") == [FinishReason.ERROR]
    assert stage.error_code("bad") == PayloadError.code
    assert len(stage.outcomes["good"].tokens) == 6
    assert [e.keep for w in stage.works for e in w.ended] == [False]
    stage.check_empty()


def test_a_failure_after_the_requests_end_goes_to_the_host() -> None:
    """What it owed downstream could not be sent: its consumers must hear of it. C60."""
    stage = Stage()
    stage.submit("a", max_tokens=1, edges=(OUT,))
    stage.step()
    assert stage.ends("a") == [FinishReason.LENGTH]
    info = PayloadError("cannot be stored").to_wire()
    stage.failures.append(("a", info))
    scheduled = stage.scheduler.schedule()
    stage.scheduler.update_from_output(scheduled, stage.run(scheduled))
    assert stage.scheduler.coordinator.take_events().errors == {"a": info}
    assert stage.ends("a") == [FinishReason.LENGTH]
    stage.check()


@BOTH
def test_a_step_that_raises_ends_what_it_carried(cls: type[ARScheduler]) -> None:
    """C51, C63: its requests get the error, gated and waiting ones go on."""
    stage = Stage(cls, max_num_seqs=2)
    for uid in "ab":
        stage.submit(uid, max_tokens=20)
    stage.submit("gated", gated=True, max_tokens=2)
    stage.submit("waiting", max_tokens=2)
    stage.step()
    scheduler = stage.scheduler
    if not stage.in_flight:  # the step that fails is the one just scheduled
        stage.finished += scheduler.schedule().finished_req_ids
    stage.in_flight.clear()  # what the executor raised instead of results
    assert sorted(scheduler.in_flight()) == ["a", "b"]
    scheduler.fail_requests(scheduler.in_flight(), StageStepError("out of memory"))
    endings = scheduler.take_endings()
    errors = scheduler.coordinator.take_events().errors
    for out in endings:
        stage._note(out, errors, {})
    assert sorted(out.request_id for out in endings) == ["a", "b"]
    assert [stage.error_code(uid) for uid in "ab"] == [StageStepError.code] * 2
    stage.deliver("gated", plan(1))
    stage.drain()
    assert stage.ends("gated") == stage.ends("waiting") == [FinishReason.LENGTH]
    stage.check_empty()


@BOTH
def test_failing_requests_reports_each_once_with_its_error(cls: type[ARScheduler]) -> None:
    """C8: also when nothing is scheduled any more; unknown ids are passed over."""
    stage = Stage(cls)
    stage.submit("running", max_tokens=20)
    stage.step()
    stage.submit("gated", gated=True)
    error = StageStepError("broken")
    stage.scheduler.fail_requests(["running", "gated", "unknown"], error)
    stage.scheduler.fail_requests(["running"], error)
    stage.drain()
    for uid in ("running", "gated"):
        assert stage.ends(uid) == [FinishReason.ERROR]
        assert stage.error_code(uid) == StageStepError.code
    stage.check_empty()


# --- sampled logprobs -----------------------------------------------------------------------------


def spoil(kind: str, lists: LogprobsLists, row: int) -> LogprobsLists | None:
    """Break the contract for the request in this row of the batch, as far as that is possible."""
    ids, values = lists.logprob_token_ids.copy(), lists.logprobs.copy()
    if kind == "missing":
        return None
    if kind == "rank":
        return LogprobsLists(ids[:, 0], values[:, 0], lists.sampled_token_ranks)
    if kind == "rows":
        return LogprobsLists(ids[:row], values[:row], lists.sampled_token_ranks[:row])
    if kind == "columns":
        return LogprobsLists(ids[:, :0], values[:, :0], lists.sampled_token_ranks)
    if kind == "token":
        ids[row, 0] += 1
    elif kind == "nan":
        values[row, 0] = np.nan
    elif kind == "infinite":
        values[row, 0] = -np.inf
    return LogprobsLists(ids, values, lists.sampled_token_ranks)


@pytest.mark.parametrize("kind", ["missing", "rank", "rows", "columns", "token", "nan", "infinite"])
@BOTH
def test_logprobs_that_break_the_contract_end_their_request_alone(
    cls: type[ARScheduler], kind: str
) -> None:
    """The batch-mates without logprobs go on, and so does the engine. C105."""
    stage = Stage(cls)
    stage.submit("plain", max_tokens=6)
    stage.submit("v", max_tokens=20, logprobs=2)

    def alter(output: ModelRunnerOutput) -> ModelRunnerOutput:
        if output.logprobs is not None:
            output.logprobs = spoil(kind, output.logprobs, output.req_id_to_index["v"])
        return output

    stage.step()
    stage.step()
    stage.alter = alter
    stage.drain()
    assert stage.ends("v") == [FinishReason.ERROR]
    assert stage.error_code("v") == SampledLogprobContractError.code
    assert len(stage.outcomes["plain"].tokens) == 6
    stage.check_empty()


def test_only_the_offender_among_several_with_logprobs_ends() -> None:
    stage = Stage()
    for uid in "abc":
        stage.submit(uid, max_tokens=4, logprobs=1)

    def alter(output: ModelRunnerOutput) -> ModelRunnerOutput:
        if "b" in output.req_id_to_index and output.logprobs is not None:
            output.logprobs = spoil("nan", output.logprobs, output.req_id_to_index["b"])
        return output

    stage.alter = alter
    stage.drain()
    assert stage.ends("b") == [FinishReason.ERROR]
    assert stage.outcomes["b"].tokens == []
    for uid in "ac":
        assert stage.ends(uid) == [FinishReason.LENGTH]
    error = stage.outcomes["b"].error
    assert error is not None
    assert "row 0" in error.message
    stage.check_empty()


@BOTH
def test_right_logprobs_reach_the_caller_and_a_chunk_of_prefill_needs_none(
    cls: type[ARScheduler],
) -> None:
    stage = Stage(cls, max_num_batched_tokens=8)
    stage.submit("a", n=20, max_tokens=3, logprobs=1)
    got = []
    while stage.has_work:
        got += [out.new_logprobs for out in stage.step()]
    tokens = stage.outcomes["a"].tokens
    assert [int(lists.logprob_token_ids[0, 0]) for lists in got if lists is not None] == tokens
    assert len(got) == 3
    stage.check_empty()


def test_many_tokens_of_one_step_are_checked_row_by_row() -> None:
    """C92: the second of two rows is the request's own, not its neighbour's."""
    stage = Stage()
    stage.submit("a", max_tokens=9, logprobs=1)
    stage.submit("b", max_tokens=9, logprobs=1)
    stage.step()
    scheduled = stage.scheduler.schedule()
    output = stage.run(scheduled)
    output.sampled_token_ids = [[3, 4], [5]]
    lists = logprobs_for([[3], [4], [5]])
    output.logprobs = LogprobsLists(*lists[:3], cu_num_generated_tokens=[0, 2, 3])
    stage.scheduler.update_from_output(scheduled, output)
    assert stage.scheduler.coordinator.take_events().errors == {}
    assert list(stage.scheduler.requests["a"].output_token_ids)[1:] == [3, 4]


@BOTH
def test_the_worker_hears_of_an_end_with_its_length(cls: type[ARScheduler]) -> None:
    stage = Stage(cls)
    stage.submit("a", n=5, max_tokens=3, edges=(OUT,))
    stage.drain()
    assert [e for w in stage.works for e in w.ended] == [Ended("a", True, 8)]
    stage.check_empty()
