"""Anything that can happen to streams, budgets and sessions of an ar stage, in any order.

After every rule the harness checks (I1) that free and held blocks are all blocks, (I3) that no
request has ended twice, and that counters are never negative. In the end what is missing is
delivered and used up: (I2) then everything has ended and nothing is held, and every token is what
an undisturbed run would have sampled. (I4) No step raises. C1, C2, C4, C34, C41, C42, C107, C117.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sched_core import token_at
from sched_engine import Stage, plan
from sched_worker import OUT, Answer, Given
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import FinishReason

from antiphon.core.budget import EdgeLimits
from antiphon.core.prompt_plan import UpdateKind
from antiphon.errors import EmptyInputError, InputTooLongError, PayloadError, StageStepError
from antiphon.sched.ar import ARScheduler, AsyncARScheduler
from antiphon.testing.clock import ManualClock

MAX_MODEL_LEN = 48
BLOCK_SIZE = 4
LIMITS = EdgeLimits(request_chunks=2, total_chunks=5)
NUMBERS = st.integers(0, 30)
SESSION_ERRORS = {
    error.code for error in (InputTooLongError, EmptyInputError, PayloadError, StageStepError)
}


@dataclass
class Input:
    """What a consumer will have been sent once everything has arrived."""

    prompt: int
    chunks: list[Answer]
    empty_end: bool  # the end is a chunk of its own
    sent: set[int] = field(default_factory=set)


@dataclass
class Talk:
    """What a session has been told: by epoch how its prompt changes."""

    prompt: list[int]
    updates: dict[int, tuple[UpdateKind, int, list[int]]] = field(default_factory=dict)

    def next_prompt(self, epoch: int, prompt: list[int], output: list[int]) -> list[int]:
        kind, keep, tokens = self.updates[epoch]
        history = prompt + output[:-1]
        match kind:
            case UpdateKind.REPLACE:
                history = []
            case UpdateKind.WINDOW:
                history = history[max(0, len(history) - keep) :]
        return history + tokens


class StreamsMachine(RuleBasedStateMachine):
    """A small pool and few seats, so that requests are preempted all the time."""

    scheduler_class: ClassVar[type[ARScheduler | AsyncARScheduler]] = ARScheduler
    policy: ClassVar[str] = "fcfs"

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.stage = Stage(
            self.scheduler_class,
            clock=self.clock,
            limits=LIMITS,
            num_blocks=2 + MAX_MODEL_LEN // BLOCK_SIZE,
            block_size=BLOCK_SIZE,
            max_num_seqs=3,
            max_num_batched_tokens=12,
            max_model_len=MAX_MODEL_LEN,
            policy=self.policy,
            enable_prefix_caching=self.policy == "priority",  # one of the two has a cache as well
        )
        self.inputs: dict[str, Input] = {}
        self.talks: dict[str, Talk] = {}
        self.routed: set[str] = set()
        self.uids: list[str] = []

    def new_uid(self, kind: str) -> str:
        self.uids.append(f"{kind}{len(self.uids)}")
        return self.uids[-1]

    def edges(self, uid: str, routed: bool) -> tuple[str, ...]:
        self.routed |= {uid} if routed else set()
        return (OUT,) if routed else ()

    def uid(self, number: int) -> str:
        """One of the requests so far, ended ones included."""
        return self.uids[number % len(self.uids)]

    def one_of(self, uids: dict[str, object], number: int) -> str:
        return list(uids)[number % len(uids)]

    # --- requests -----------------------------------------------------------------------------

    @rule(
        length=st.integers(1, 20),
        max_tokens=st.integers(1, 9),
        routed=st.booleans(),
        priority=st.integers(0, 2),
    )
    def submit(self, length: int, max_tokens: int, routed: bool, priority: int) -> None:
        uid = self.new_uid("plain")
        self.inputs[uid] = Input(length, [], False)
        edges = self.edges(uid, routed)
        self.stage.submit(uid, length, max_tokens=max_tokens, edges=edges, priority=priority)

    @rule(
        length=st.integers(1, 14),
        rows=st.lists(st.integers(0, 3), min_size=1, max_size=5),
        empty_end=st.booleans(),
        timeout=st.sampled_from([0.0, 0.0, 50.0]),
        max_tokens=st.integers(1, 9),
        routed=st.booleans(),
    )
    def submit_stream(
        self,
        *,
        length: int,
        rows: list[int],
        empty_end: bool,
        timeout: float,
        max_tokens: int,
        routed: bool,
    ) -> None:
        uid = self.new_uid("stream")
        first = Given(plan(*range(1, length + 1)), rows[0])
        self.inputs[uid] = Input(length, [first, *rows[1:]], empty_end)
        edges = self.edges(uid, routed)
        self.stage.submit(
            uid,
            stream=True,
            timeout_s=timeout,
            max_tokens=max_tokens,
            edges=edges,
            priority=len(rows) % 3,
        )

    @rule(
        length=st.integers(1, 10),
        max_tokens=st.integers(1, 6),
        routed=st.booleans(),
        logprobs=st.sampled_from([None, 0]),
    )
    def submit_session(
        self, length: int, max_tokens: int, routed: bool, logprobs: int | None
    ) -> None:
        uid = self.new_uid("session")
        tokens = list(range(1, length + 1))
        self.talks[uid] = Talk(tokens)
        edges = self.edges(uid, routed)
        self.stage.submit(
            uid, tokens=tokens, session=True, max_tokens=max_tokens, edges=edges, logprobs=logprobs
        )

    # --- input --------------------------------------------------------------------------------

    @precondition(lambda self: self.inputs)
    @rule(number=NUMBERS, seq=st.integers(0, 6))
    def deliver(self, number: int, seq: int) -> None:
        """In any order, again, behind the end, to whomever."""
        self.send(self.one_of(self.inputs, number), seq)

    def send(self, uid: str, seq: int) -> None:
        given = self.inputs[uid]
        given.sent.add(seq)
        if seq < len(given.chunks):
            end = seq == len(given.chunks) - 1 and not given.empty_end
            self.stage.deliver(uid, given.chunks[seq], seq=seq, end=end)
        elif given.empty_end and seq == len(given.chunks):
            self.stage.deliver_nothing(uid, seq=seq)
        else:
            self.stage.deliver(uid, 1, seq=99, end=False)

    @precondition(lambda self: self.talks)
    @rule(
        number=NUMBERS,
        kind=st.sampled_from([UpdateKind.EXTEND, *UpdateKind]),
        length=st.integers(0, 7),
        keep=st.integers(0, 20),
        max_tokens=st.sampled_from([None, 1, 4]),
        logprobs=st.sampled_from([None, 1]),
    )
    def update(
        self,
        *,
        number: int,
        kind: UpdateKind,
        length: int,
        keep: int,
        max_tokens: int | None,
        logprobs: int | None,
    ) -> None:
        uid = self.one_of(self.talks, number)
        if uid not in self.stage.scheduler.requests:
            return
        talk = self.talks[uid]
        epoch = max(talk.updates, default=0) + 1
        tokens = [100 * epoch + i for i in range(length)]
        talk.updates[epoch] = kind, keep, tokens
        params = None
        if max_tokens is not None:
            params = SamplingParams(max_tokens=max_tokens, logprobs=logprobs)
        self.stage.update(uid, epoch, *tokens, kind=kind, keep=keep, params=params)

    @precondition(lambda self: self.uids)
    @rule(number=NUMBERS)
    def interrupt(self, number: int) -> None:
        self.stage.interrupt(self.uid(number))

    # --- output -------------------------------------------------------------------------------

    @rule(count=st.integers(0, 5))
    def consume(self, count: int) -> None:
        self.stage.consume(count)

    @rule()
    def discard(self) -> None:
        taken, self.stage.sent = self.stage.sent[:1], self.stage.sent[1:]
        self.stage.scheduler.discard([ref.key for ref in taken if ref.key is not None])

    # --- everything else ----------------------------------------------------------------------

    @rule(times=st.integers(1, 5))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.stage.step()

    @precondition(lambda self: self.uids)
    @rule(number=NUMBERS, what=st.sampled_from(["abort", "interrupt"]))
    def during_a_step(self, number: int, what: str) -> None:
        uid = self.uid(number)
        act = self.stage.abort if what == "abort" else self.stage.interrupt
        self.stage.step(before_update=lambda: act(uid))

    @precondition(lambda self: self.uids)
    @rule(numbers=st.lists(NUMBERS, min_size=1, max_size=2))
    def abort(self, numbers: list[int]) -> None:
        uids = [self.uid(number) for number in numbers]
        self.stage.abort(*uids)
        self.stage.scheduler.abandon(uids[:1])

    @precondition(lambda self: self.uids)
    @rule(number=NUMBERS, where=st.sampled_from(["host", "worker"]))
    def fail(self, number: int, where: str) -> None:
        if where == "host":
            self.stage.scheduler.fail_requests([self.uid(number)], StageStepError("broken"))
        else:
            self.stage.failures.append((self.uid(number), PayloadError("broken").to_wire()))
            self.stage.step()

    @rule(seconds=st.sampled_from([1.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def preempt_everything(self) -> None:
        self.stage.scheduler.give_up_blocks()
        self.stage.scheduler.reset_prefix_cache(True)

    # --- what must hold -----------------------------------------------------------------------

    @invariant()
    def nothing_is_lost(self) -> None:
        self.stage.check()
        statistics = self.stage.scheduler.coordinator.outflow.statistics()[OUT]
        under_way = 3 * (2 * self.stage.depth - 1)
        assert statistics.chunks <= LIMITS.total_chunks + 2 * 3 + under_way + len(self.uids)

    def teardown(self) -> None:
        stage = self.stage
        for uid, given in self.inputs.items():
            for seq in range(len(given.chunks) + given.empty_end):
                if seq not in given.sent:
                    self.send(uid, seq)
        for _ in range(400):
            stage.drain(600)
            if not stage.consume():
                break
        for uid in self.talks:
            self.check_session(uid)
        stage.abort(*self.talks)
        stage.drain()
        stage.check_empty()
        for uid, given in self.inputs.items():
            outcome = stage.outcomes[uid]
            count = len(outcome.tokens)
            assert outcome.tokens == [token_at(uid, given.prompt + i) for i in range(count)]
            assert stage.updates(uid) == (outcome.tokens if uid in self.routed else [])
            assert (outcome.ends == [FinishReason.ERROR]) == (outcome.error is not None)

    def check_session(self, uid: str) -> None:
        """Every segment had the prompt that the ones before it lead to."""
        stage, talk = self.stage, self.talks[uid]
        outcome = stage.outcomes[uid]
        ended = [end.epoch for end in stage.segments if end.uid == uid]
        prompt = talk.prompt
        previous: list[int] = []
        for epoch in [*ended, *sorted(outcome.by_epoch.keys() - set(ended))]:
            if epoch:
                prompt = talk.next_prompt(epoch, prompt, previous)
            previous = outcome.by_epoch.get(epoch, [])
            assert stage.worker.prompts.get((uid, epoch), prompt) == prompt
            assert previous == [token_at(uid, len(prompt) + i) for i in range(len(previous))]
        assert stage.updates(uid) == (outcome.tokens if uid in self.routed else [])
        if uid in stage.scheduler.requests:
            assert ended[-1] == max(talk.updates, default=0)  # nothing that was taken is forgotten
        elif outcome.ends == [FinishReason.ERROR]:
            assert outcome.error is not None
            assert outcome.error.code in SESSION_ERRORS


class AsyncStreamsMachine(StreamsMachine):
    """With two batches in flight."""

    scheduler_class = AsyncARScheduler


class PriorityStreamsMachine(AsyncStreamsMachine):
    """The lowest priority is preempted first, whatever its place."""

    policy = "priority"


TestSync = StreamsMachine.TestCase
TestAsync = AsyncStreamsMachine.TestCase
TestPriority = PriorityStreamsMachine.TestCase
TestSync.settings = TestAsync.settings = TestPriority.settings = settings(
    max_examples=40,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
