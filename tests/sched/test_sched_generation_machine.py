"""Anything that can happen to the streams of a generation stage, in any order.

After every rule the harness checks its invariants (I1, I3). In the end everything is delivered and
used up: then (I2) nothing is left, and each stream has run each of its chunks once and in order.
(I4) No step raises. C1, C2, C62, C77, C107.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sched_engine import Stage, plan
from sched_worker import OUT
from vllm.v1.engine import FinishReason

from antiphon.core.budget import EdgeLimits
from antiphon.errors import PayloadError, StageStepError
from antiphon.sched.generation import GenerationScheduler
from antiphon.testing.clock import ManualClock

NUMBERS = st.integers(0, 30)
ABSORBED = 0  # a chunk of this length gives no forward
TOO_LONG = 32  # for more than one step


@dataclass
class Input:
    """The lengths of a stream's chunks; all its tokens are its own number."""

    number: int
    lengths: list[int]
    empty_end: bool  # the end is a chunk of its own
    sent: set[int] = field(default_factory=set)

    def prompt(self, seq: int) -> list[int]:
        return [self.number] * self.lengths[seq]


class GenerationMachine(RuleBasedStateMachine):
    """A small pool, few seats and a window of two streams."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.stage = Stage(
            GenerationScheduler,
            clock=self.clock,
            limits=EdgeLimits(request_chunks=1, total_chunks=3),
            active_streams=2,
            num_blocks=10,
            block_size=4,
            max_num_seqs=3,
            max_num_batched_tokens=12,
            max_model_len=32,
        )
        self.stage.worker.produces = False  # no tokens are sampled: chunks are sent by a rule
        self.inputs: dict[str, Input] = {}

    def uid(self, number: int) -> str:
        """One of the requests so far, ended ones included."""
        return list(self.inputs)[number % len(self.inputs)]

    @rule(
        lengths=st.lists(
            st.sampled_from([ABSORBED, 1, 3, 5, 11, 17, 31, TOO_LONG]), min_size=1, max_size=5
        ),
        empty_end=st.booleans(),
        timeout=st.sampled_from([0.0, 0.0, 50.0]),
        routed=st.booleans(),
    )
    def submit(self, lengths: list[int], empty_end: bool, timeout: float, routed: bool) -> None:
        number = len(self.inputs)
        uid = f"r{number}"
        self.inputs[uid] = Input(number, lengths, empty_end)
        self.stage.submit(uid, stream=True, timeout_s=timeout, edges=(OUT,) if routed else ())

    @precondition(lambda self: self.inputs)
    @rule(number=NUMBERS, seq=st.integers(0, 5))
    def deliver(self, number: int, seq: int) -> None:
        """In any order, again, behind the end, to whomever."""
        self.send(self.uid(number), seq)

    def send(self, uid: str, seq: int) -> None:
        given = self.inputs[uid]
        given.sent.add(seq)
        if seq < len(given.lengths):
            end = seq == len(given.lengths) - 1 and not given.empty_end
            prompt = given.prompt(seq)
            self.stage.deliver(uid, plan(*prompt) if prompt else 0, seq=seq, end=end)
        elif given.empty_end and seq == len(given.lengths):
            self.stage.deliver_nothing(uid, seq=seq)

    @precondition(lambda self: self.inputs)
    @rule(number=NUMBERS)
    def produce(self, number: int) -> None:
        """A chunk of a routed request leaves the stage."""
        if ((uid := self.uid(number)), 0) in self.stage.worker.open:
            self.stage.worker.send(uid)

    @rule(count=st.integers(0, 3))
    def consume(self, count: int) -> None:
        self.stage.consume(count)

    @rule(times=st.integers(1, 4))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.stage.step()

    @precondition(lambda self: self.inputs)
    @rule(numbers=st.lists(NUMBERS, min_size=1, max_size=4), during=st.booleans())
    def abort(self, numbers: list[int], during: bool) -> None:
        uids = {self.uid(number) for number in numbers}
        if during:
            self.stage.step(before_update=lambda: self.stage.abort(*uids))
        self.stage.abort(*uids)
        self.stage.scheduler.abandon(uids)

    @precondition(lambda self: self.inputs)
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

    @invariant()
    def nothing_is_lost(self) -> None:
        self.stage.check()

    def teardown(self) -> None:
        stage = self.stage
        for uid, given in self.inputs.items():
            for seq in range(len(given.lengths) + given.empty_end):
                if seq not in given.sent:
                    self.send(uid, seq)
        for _ in range(100):
            stage.drain(600)
            if not stage.consume():
                break
        stage.check_empty()
        for uid, given in self.inputs.items():
            planned = [given.prompt(s) for s, n in enumerate(given.lengths) if n != ABSORBED]
            ran = [prompt for each, prompt in stage.worker.begun if each == uid]
            assert ran == planned[: len(ran)]
            if stage.ends(uid) == [FinishReason.STOP]:
                assert ran == planned


TestGeneration = GenerationMachine.TestCase
TestGeneration.settings = settings(
    max_examples=40,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
