"""Anything that can happen to a stage's scheduler, in any order: gated and plain requests,
payloads, ends, steps, aborts, timeouts, failures, preemption.

After every step (I1) free and held blocks are all blocks; after all requests are over (I2) every
table is empty and nothing is held; (I3) each request ended once; (I4) no step raised. C1, C2, C117.
"""

from __future__ import annotations

from typing import ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sched_core import token_at
from sched_engine import OUT, Answer, Stage, plan
from vllm.v1.engine import FinishReason

from antiphon.core.options import Preemption
from antiphon.errors import PayloadError, StageStepError
from antiphon.sched.ar import ARScheduler, AsyncARScheduler
from antiphon.sched.mixin import StageSchedulerMixin
from antiphon.testing.clock import ManualClock

MAX_MODEL_LEN = 64
ANSWERS: dict[str, Answer] = {
    "short": plan(1, 2, 3),
    "long": plan(*range(1, 19)),
    "conditioned": plan(1, 2, 3, 4, 5, salt="voice"),
    "too long": plan(*[1] * MAX_MODEL_LEN),
    "empty": plan(),
    "corrupt": PayloadError("corrupt"),
}


class StageMachine(RuleBasedStateMachine):
    """One scheduler with a small pool, so that requests are preempted all the time."""

    scheduler_class: ClassVar[type[StageSchedulerMixin]] = ARScheduler
    policy: ClassVar[Preemption] = Preemption.RECOMPUTE

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.stage = Stage(
            self.scheduler_class,
            clock=self.clock,
            num_blocks=11,
            block_size=4,
            max_num_seqs=4,
            max_num_batched_tokens=16,
            max_model_len=MAX_MODEL_LEN,
            enable_prefix_caching=True,
            preemption=self.policy,
        )
        self.preempted_by_us = 0
        self.prompts: dict[str, int] = {}  # length of the prompt that each request really has
        self.uids: list[str] = []

    def uid(self, number: int) -> str:
        """One of the requests so far, ended ones included."""
        return self.uids[number % len(self.uids)]

    def new_uid(self) -> str:
        self.uids.append(f"r{len(self.uids)}")
        return self.uids[-1]

    # --- what happens -------------------------------------------------------------------------

    @rule(
        length=st.integers(1, 20),
        max_tokens=st.integers(1, 10),
        routed=st.booleans(),
        logprobs=st.sampled_from([None, 0, 2]),
    )
    def submit(self, length: int, max_tokens: int, routed: bool, logprobs: int | None) -> None:
        uid = self.new_uid()
        self.prompts[uid] = length
        edges = (OUT,) if routed else ()
        self.stage.submit(uid, length, max_tokens=max_tokens, edges=edges, logprobs=logprobs)

    @rule(timeout=st.sampled_from([0.0, 5.0, 50.0]), routed=st.booleans())
    def submit_gated(self, timeout: float, routed: bool) -> None:
        edges = (OUT,) if routed else ()
        self.stage.submit(self.new_uid(), gated=True, timeout_s=timeout, max_tokens=6, edges=edges)

    @precondition(lambda self: self.uids)
    @rule(number=st.integers(0, 50), kind=st.sampled_from(sorted(ANSWERS)), seq=st.integers(0, 1))
    def deliver(self, number: int, kind: str, seq: int) -> None:
        """To whomever: a request that waits, has its payload already, never waited or has ended."""
        uid, answer = self.uid(number), ANSWERS[kind]
        if uid not in self.prompts:
            self.prompts[uid] = len(answer.token_ids) if not isinstance(answer, Exception) else 0
            self.stage.deliver(uid, answer, seq=seq)
        else:
            self.stage.deliver(uid, seq=seq)

    @precondition(lambda self: self.uids)
    @rule(number=st.integers(0, 50))
    def end_empty(self, number: int) -> None:
        self.prompts.setdefault(self.uid(number), 1)
        self.stage.deliver_nothing(self.uid(number))

    @rule(times=st.integers(1, 4))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.stage.step()

    @precondition(lambda self: self.uids)
    @rule(number=st.integers(0, 50))
    def abort(self, number: int) -> None:
        self.stage.abort(self.uid(number))

    @precondition(lambda self: self.uids)
    @rule(number=st.integers(0, 50))
    def abort_during_a_step(self, number: int) -> None:
        self.stage.step(before_update=lambda: self.stage.abort(self.uid(number)))

    @precondition(lambda self: self.uids)
    @rule(number=st.integers(0, 50))
    def fail(self, number: int) -> None:
        self.stage.scheduler.fail_requests([self.uid(number)], StageStepError("broken"))

    @precondition(lambda self: self.uids)
    @rule(number=st.integers(0, 50))
    def fail_in_the_worker(self, number: int) -> None:
        uid = self.uid(number)
        self.stage.failures.append((uid, PayloadError("cannot be stored").to_wire()))
        self.stage.step()

    @rule(seconds=st.sampled_from([1.0, 5.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def preempt_everything(self) -> None:
        self.preempted_by_us += len(self.stage.scheduler.running)
        self.stage.scheduler.reset_prefix_cache(True)

    # --- what must hold -----------------------------------------------------------------------

    @invariant()
    def nothing_is_lost(self) -> None:
        self.stage.check()

    def teardown(self) -> None:
        stage = self.stage
        for uid in self.uids:
            if uid in stage.scheduler.coordinator.gate:
                stage.abort(uid)
        stage.drain(400)
        stage.check_empty()
        for uid, outcome in stage.outcomes.items():
            start = self.prompts.get(uid, 0)
            expected = [token_at(uid, start + i) for i in range(len(outcome.tokens))]
            assert outcome.tokens == expected, uid
            assert (outcome.ends == [FinishReason.ERROR]) == (outcome.error is not None), uid
        if self.policy is Preemption.RESERVE:
            assert stage.preemptions <= self.preempted_by_us
            assert stage.scheduler.reservations.reserved == 0


class AsyncStageMachine(StageMachine):
    """With two batches in flight."""

    scheduler_class = AsyncARScheduler


class ReservingMachine(StageMachine):
    """Nothing is preempted but by us, which ends the request. C34, C37."""

    policy = Preemption.RESERVE


class AsyncReservingMachine(AsyncStageMachine):
    """With two batches in flight."""

    policy = Preemption.RESERVE


TestSync = StageMachine.TestCase
TestAsync = AsyncStageMachine.TestCase
TestReserving = ReservingMachine.TestCase
TestAsyncReserving = AsyncReservingMachine.TestCase
TestSync.settings = TestAsync.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestReserving.settings = settings(TestSync.settings, max_examples=20)
TestAsyncReserving.settings = settings(TestSync.settings, max_examples=20)
