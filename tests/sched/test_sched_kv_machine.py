"""Anything that can happen to hand-offs, in any order: requests that feed the edge and others,
answers that are good, bad, late, repeated or never come, aborts here and everywhere, preemption,
failures, consumers that take a cache or do not, time that passes.

After every step all blocks are accounted for and every store agrees with the others; what is
shipped holds the tokens that it names. When all is over, blocks, keys and tables are as at the
start, and each request ended once. C1, C2, C6, C117, C119.
"""

from __future__ import annotations

from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sched_core import token_at
from sched_kv import KvStage
from vllm.v1.engine import FinishReason

from antiphon.core.kv_handoff import KvSettings, KvTransfer
from antiphon.core.options import Preemption
from antiphon.errors import StageStepError
from antiphon.sched.ar import ARScheduler, AsyncARScheduler
from antiphon.sched.mixin import StageSchedulerMixin

TRANSFERS = [
    KvTransfer(kind, token, stop, park)
    for kind, token in (
        ("prefill_finished", None),
        ("special_token", 7),
        ("special_token", 2),
        ("request_finished", None),
    )
    for stop, park in ((True, True), (True, False), (False, True))
]
ACK_S, LEASE_S = 10.0, 40.0


class HandoffMachine(RuleBasedStateMachine):
    """One scheduler with a small pool, so that requests are preempted all the time."""

    scheduler_class: ClassVar[type[StageSchedulerMixin]] = ARScheduler

    def __init__(self) -> None:
        super().__init__()
        self.stage: KvStage
        self.prompts: dict[str, int] = {}
        self.wanted: set[str] = set()  # requests that feed the edge
        self.ended_by_us: set[str] = set()  # aborted or failed from outside

    @initialize(
        transfer=st.sampled_from(TRANSFERS),
        on_failure=st.sampled_from(["fail", "recompute"]),
        caching=st.booleans(),
        window=st.sampled_from([0, 8]),
        preemption=st.sampled_from([Preemption.RECOMPUTE, *Preemption]),
    )
    def start(
        self,
        transfer: KvTransfer,
        on_failure: Any,
        caching: bool,
        window: int,
        preemption: Preemption,
    ) -> None:
        self.transfer = transfer
        self.policy = KvSettings(on_failure=on_failure, ack_timeout_s=ACK_S, lease_s=LEASE_S)
        self.stage = KvStage(
            self.scheduler_class,
            transfer,
            self.policy,
            num_blocks=12 if window == 0 else 20,
            block_size=4,
            max_num_seqs=4,
            max_num_batched_tokens=16,
            max_model_len=40,
            enable_prefix_caching=caching,
            window=window,
            preemption=preemption,
        )

    def uid(self, number: int) -> str:
        """One of the requests so far, ended ones included."""
        uids = list(self.prompts)
        return uids[number % len(uids)]

    # --- what happens -------------------------------------------------------------------------

    @rule(length=st.integers(1, 18), max_tokens=st.integers(1, 14), wanted=st.integers(0, 3))
    def submit(self, length: int, max_tokens: int, wanted: int) -> None:
        uid = f"r{len(self.prompts)}"
        self.prompts[uid] = length
        if wanted:
            self.wanted.add(uid)
        self.stage.submit(uid, length, max_tokens=max_tokens, hands_over=wanted > 0)

    @rule(times=st.integers(1, 4))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.stage.step()

    @rule(answer=st.sampled_from(["ok", "ok", "fail", "keep"]))
    def change_the_worker(self, answer: Any) -> None:
        self.stage.answer = answer

    @precondition(lambda self: self.stage.ships)
    @rule(number=st.integers(0, 50), ok=st.booleans(), twice=st.booleans())
    def answer(self, number: int, ok: bool, twice: bool) -> None:
        """To any order so far: the first answer, a repeat, or one that contradicts it."""
        self.stage.ack(self.stage.ships[number % len(self.stage.ships)], ok=ok, twice=twice)

    @precondition(lambda self: self.prompts)
    @rule(number=st.integers(0, 50))
    def abort(self, number: int) -> None:
        self._ended_by_us(self.uid(number))
        self.stage.abort(self.uid(number))

    @precondition(lambda self: self.prompts)
    @rule(number=st.integers(0, 50))
    def abort_during_a_step(self, number: int) -> None:
        uid = self.uid(number)

        def abort() -> None:
            self._ended_by_us(uid)
            self.stage.abort(uid)

        self.stage.step(before_update=abort)

    @precondition(lambda self: self.prompts)
    @rule(number=st.integers(0, 50))
    def abandon(self, number: int) -> None:
        """The request is over on every stage: what it has sent is freed here."""
        uid = self.uid(number)
        self.ended_by_us.add(uid)
        self.stage.abandon(uid)
        self.stage.sent = [ref for ref in self.stage.sent if ref.uid != uid]

    @precondition(lambda self: self.prompts)
    @rule(number=st.integers(0, 50))
    def fail(self, number: int) -> None:
        self._ended_by_us(self.uid(number))
        self.stage.scheduler.fail_requests([self.uid(number)], StageStepError("broken"))

    @precondition(lambda self: self.prompts)
    @rule(number=st.integers(0, 50))
    def preempt(self, number: int) -> None:
        """Between a step and its result, where async scheduling does it."""
        request = self.stage.scheduler.requests.get(self.uid(number))
        recomputes = self.stage.scheduler.options.preemption is Preemption.RECOMPUTE
        if request is not None and request in self.stage.scheduler.running and recomputes:
            self.stage.scheduler.parking.preempt(request)

    @precondition(lambda self: any(ref.key for ref in self.stage.sent))
    @rule(number=st.integers(0, 50))
    def take(self, number: int) -> None:
        """A consumer takes a cache, if it is there still."""
        refs = [ref for ref in self.stage.sent if ref.key is not None]
        ref = refs[number % len(refs)]
        if ref.key in self.stage.stored:
            self.stage.take(ref)

    @precondition(lambda self: self.stage.stored)
    @rule(number=st.integers(0, 50))
    def discard(self, number: int) -> None:
        keys = sorted(self.stage.stored)
        self.stage.scheduler.discard([keys[number % len(keys)]])

    @rule(seconds=st.sampled_from([1.0, 4.0, ACK_S, LEASE_S]))
    def wait(self, seconds: float) -> None:
        self.stage.clock.advance(seconds)

    def _ended_by_us(self, uid: str) -> None:
        if uid in self.stage.scheduler.requests:
            self.ended_by_us.add(uid)

    # --- what must hold -----------------------------------------------------------------------

    @invariant()
    def nothing_is_lost(self) -> None:
        self.stage.check()
        scheduler = self.stage.scheduler
        if scheduler.handoffs.holding and not scheduler.handoffs.to_ship:
            assert scheduler.next_due() is not None

    def teardown(self) -> None:
        stage = self.stage
        while stage.has_work or stage.scheduler.next_due() is not None:
            stage.clock.advance(0.2 if stage.has_work else LEASE_S)
            assert stage.clock() < 10_000, "it never ends"
            stage.step()
        stage.sent = [ref for ref in stage.sent if ref.key in stage.stored]
        stage.check_over()
        assert not stage.stored
        assert stage.statistics.held_blocks == 0
        for uid in self.prompts:
            self._check_outcome(uid)

    def _check_outcome(self, uid: str) -> None:
        """Tokens are the model's, no further than the trigger, and errors are the typed ones."""
        outcome, start = self.stage.outcomes[uid], self.prompts[uid]
        count = len(outcome.tokens)
        assert outcome.tokens == [token_at(uid, start + i) for i in range(count)], uid
        if outcome.ends == [FinishReason.ERROR]:
            assert outcome.error is not None, uid
        elif outcome.error is not None:  # it ended by itself, and its cache was lost by then
            assert outcome.error.code == "kv_transfer", uid
            assert self.policy.on_failure == "fail"
        assert self.stage.late.keys() <= self.wanted
        if uid not in self.wanted:
            assert not self.stage.shipped(uid)
            return
        assert len(self.stage.shipped(uid)) <= 1
        if self.transfer.stop_after_transfer and self.transfer.type == "special_token":
            assert self.transfer.token_id not in outcome.tokens[:-1]
        if self.transfer.stop_after_transfer and self.transfer.type == "prefill_finished":
            assert count <= 1
        self._check_told(uid)

    def _check_told(self, uid: str) -> None:
        """The consumer hears of each cache once, of its loss if need be, and never of another's."""
        outcome = self.stage.outcomes[uid]
        errors = [info for info in (outcome.error, self.stage.late.get(uid)) if info is not None]
        lost = sum(info.code == "kv_transfer" for info in errors)
        told = self.stage.heard.count(f"ready {uid}") + lost
        assert told <= 1
        assert not (lost and self.policy.on_failure == "recompute")
        if uid in self.ended_by_us or len(errors) > lost or not outcome.tokens:
            return
        special = self.transfer.type == "special_token"
        assert told == (not special or self.transfer.token_id in outcome.tokens)


class AsyncHandoffMachine(HandoffMachine):
    """With two batches in flight."""

    scheduler_class = AsyncARScheduler


TestSync = HandoffMachine.TestCase
TestAsync = AsyncHandoffMachine.TestCase
TestSync.settings = TestAsync.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
