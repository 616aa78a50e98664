"""A stream edge between two real stages on which everything goes wrong that can.

Chunks come late, out of order, twice, damaged or never, cannot be stored for a while or for ever,
and either end is aborted at any moment. Whatever happens: each request ends once, those that
succeed say what transformers says, nothing is left (I1-I4).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from antiphon.core.budget import EdgeLimits
from antiphon.core.options import ConnectorSpec, InEdge, OutEdge
from antiphon.errors import from_wire
from antiphon.stage.messages import Abort, Discard, Step, Used
from antiphon.testing.fault_table import Fault
from antiphon.testing.faults import Faults, RefShuffler, faulty
from engine_pool import EnginePool
from tiny import Driven, reference, tiny_spec
from tiny_clock import CLOCK
from tiny_streams import MADE, expected_tokens

RUN = "stream_faults"
CONNECTOR = ConnectorSpec("antiphon.testing.faults:FaultyInproc", RUN)
LIMITS = EdgeLimits(request_chunks=6)
PATIENCE = 60.0  # s, of a consumer
ROWS, TOKENS = 3, 12
PROMPT = [5, 17, 80, 3]


def spec(name: str, model: str, overlap: bool, **over: Any) -> Any:
    made = tiny_spec(
        name, model, RUN, input_wait_timeout_s=PATIENCE, async_scheduling=overlap, **over
    )
    scheduler = "ClockedAsyncARScheduler" if overlap else "ClockedARScheduler"
    args = made.engine_args | {"scheduler_cls": f"tiny_clock.{scheduler}"}
    return msgspec.structs.replace(made, connector=CONNECTOR, engine_args=args)


KINDS = {"params": [False, True], "ids": ["sync", "async"]}


@pytest.fixture(scope="module", **KINDS)
def overlap(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def producer(engines: EnginePool, model_a: str, overlap: bool) -> Driven:
    edge = OutEdge("rows", "tiny_streams:RowChunksOut", stream=True, limits=LIMITS)
    return engines.stage(spec("faulty-producer", model_a, overlap, outputs=(edge,)))


@pytest.fixture(scope="module")
def consumer(engines: EnginePool, model_b: str, overlap: bool) -> Driven:
    edge = InEdge("rows", "tiny_streams:RowStreamIn", stream=True)
    return engines.stage(
        spec("faulty-consumer", model_b, overlap, inputs=(edge,), enable_prompt_embeds=True)
    )


@pytest.fixture(scope="module")
def model(model_b: str) -> LlamaForCausalLM:
    return reference(model_b)


class Pair:
    """The orchestrator's part: refs in whatever order, and what ends at one end ends at both."""

    def __init__(self, producer: Driven, consumer: Driven) -> None:
        producer.clear()
        consumer.clear()
        self.producer, self.consumer = producer, consumer
        self.mail = RefShuffler()
        self.faults: Faults = faulty(RUN)
        self.faults.heal()
        self.uids: list[str] = []
        self.over: set[str] = set()  # ended by us or by an error
        self._seen = 0, 0
        self._token = 0

    def start(self, index: int, chunk: int) -> None:
        uid = f"q{index}"
        self.uids.append(uid)
        sampling = {"max_tokens": TOKENS}
        prompt = [token + index for token in PROMPT]
        self.producer.submit(
            uid, prompt, edges=("rows",), params={"chunk": chunk}, sampling=sampling
        )
        self.consumer.submit(
            f"{uid}'", waits_for="rows", params={"prompt": ROWS}, sampling=sampling
        )

    def step(self, stage: Driven) -> None:
        if stage.host.has_work:
            stage.host.step()
        self.forward()

    def forward(self) -> None:
        down, up = self._seen
        self._seen = len(self.producer.events), len(self.consumer.events)
        for event in self.producer.events[down:]:
            if isinstance(event, Step):
                for ref in event.refs:
                    if ref.uid not in self.over:
                        self.mail.add([(f"{ref.uid}'", ref)])
                    elif ref.key is not None:
                        self.producer.host.handle(Discard([ref.key]))
                self._end({out.uid for out in event.outputs if out.error is not None})
        for event in self.consumer.events[up:]:
            if isinstance(event, Step):
                for edge, keys in event.used.items():
                    self.producer.host.handle(Used(edge, keys))
                self._end({o.uid.rstrip("'") for o in event.outputs if o.error is not None})

    def _end(self, uids: set[str]) -> None:
        for uid in uids - self.over:
            self.abort(uid)

    def abort(self, uid: str) -> None:
        self.over.add(uid)
        self._token += 1
        for stage in (self.producer, self.consumer):
            stage.host.handle(Abort([uid, f"{uid}'"], self._token))

    def deliver(self, item: tuple[str, Any]) -> None:
        from antiphon.stage.messages import Deliver

        self.consumer.host.handle(Deliver([item]))

    def settle(self) -> None:
        """Nothing goes wrong any more; who still waits for a lost chunk is past its deadline."""
        self.faults.heal()
        for _ in range(2000):
            while self.mail.pending:
                self.deliver(self.mail.deliver())
            busy = [s for s in (self.producer, self.consumer) if s.host.has_work]
            for stage in busy:
                self.step(stage)
            if not busy and not self.mail.pending:
                if not self.consumer.scheduler.requests and not self.producer.scheduler.requests:
                    return
                CLOCK.advance(PATIENCE + 1)
        raise AssertionError("the stages do not come to rest")


ACTIONS = st.sampled_from(
    ["produce"] * 6
    + ["consume"] * 6
    + ["deliver"] * 6
    + ["repeat", "lose", "corrupt", "put fails", "put fails for ever", "heal", "abort", "wait"]
)


def act(pair: Pair, action: str, number: int) -> None:
    pending = pair.mail.pending
    match action:
        case "produce":
            pair.step(pair.producer)
        case "consume":
            pair.step(pair.consumer)
        case "deliver" if pending:
            pair.deliver(pair.mail.deliver(number % len(pending)))
        case "repeat" if pending:
            pair.deliver(pair.mail.repeat(number % len(pending)))
        case "lose" if pending:
            pair.mail.lose(number % len(pending))
        case "corrupt" if pending:
            key = pending[number % len(pending)][1].key
            if key is not None:
                pair.faults.corrupt(key)
        case "put fails":
            pair.faults.fail_puts(1 + number % 3)
        case "put fails for ever":
            pair.faults.fail_puts(None, pair.uids[number % len(pair.uids)] + "/")
        case "heal":
            pair.faults.heal()
        case "abort":
            pair.abort(pair.uids[number % len(pair.uids)])
        case "wait":
            CLOCK.advance(1.0)


def run_story(
    pair: Pair, model: LlamaForCausalLM, story: list[tuple[str, int]], chunk: int
) -> None:
    for index in range(3):
        pair.start(index, chunk)
    for action, number in story:
        act(pair, action, number)
    pair.settle()
    for uid in pair.uids:
        told = [o for s in (pair.consumer,) for o in s.endings(f"{uid}'")]
        assert len(told) <= 1  # an abort is told by its acknowledgement
        if uid not in pair.over:
            assert [out.finish for out in told] == ["length"]
            rows = torch.stack(MADE[uid])
            tokens = pair.consumer.tokens(f"{uid}'")
            assert tokens == expected_tokens(model, rows, ROWS, TOKENS)
    for stage in (pair.producer, pair.consumer):
        stage.assert_empty()
        assert stage.inspect().connector_entries == 0
    outflow = pair.producer.scheduler.coordinator.outflow
    assert all(edge.chunks == 0 for edge in outflow.statistics().values())


STORIES = st.lists(st.tuples(ACTIONS, st.integers(0, 7)), max_size=80)
SETTINGS = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
}


@settings(max_examples=15, **SETTINGS)
@given(story=STORIES, chunk=st.sampled_from([1, 2, 5]))
def test_whatever_happens_each_request_ends_once(
    producer: Driven,
    consumer: Driven,
    model: LlamaForCausalLM,
    story: list[tuple[str, int]],
    chunk: int,
) -> None:
    """C107, C85, C115: no word is lost, no request hangs, nobody else is hurt."""
    run_story(Pair(producer, consumer), model, story, chunk)


@pytest.mark.slow
@settings(max_examples=400, **SETTINGS)
@given(story=STORIES, chunk=st.sampled_from([1, 2, 5]))
def test_whatever_happens_at_length(
    producer: Driven,
    consumer: Driven,
    model: LlamaForCausalLM,
    story: list[tuple[str, int]],
    chunk: int,
) -> None:
    run_story(Pair(producer, consumer), model, story, chunk)


@pytest.mark.fault("deliver-lost")
def test_a_lost_chunk_ends_its_request_within_the_deadline(
    producer: Driven, consumer: Driven, fault: Fault
) -> None:
    """C12: the error names the edge and the last chunk that came in order."""
    pair = Pair(producer, consumer)
    pair.start(0, 1)
    for _ in range(8):
        pair.step(producer)
    lost = next(i for i, (_, ref) in enumerate(pair.mail.pending) if ref.seq == 5)
    pair.mail.lose(lost)
    while pair.mail.pending:
        pair.deliver(pair.mail.deliver())
    consumer.run()
    CLOCK.advance(PATIENCE - 1)
    consumer.run()
    assert not consumer.endings("q0'")
    CLOCK.advance(fault.within_s or 0)
    consumer.run()
    (end,) = consumer.endings("q0'")
    assert end.error is not None
    assert type(from_wire(end.error)) is fault.error
    assert "stage 'faulty-consumer'" in end.error.message
    assert "'rows'" in end.error.message
    assert "the last chunk was 4" in end.error.message
    pair.forward()
    pair.settle()


@pytest.mark.fault("put-fails-a-while")
def test_a_put_that_fails_for_a_while_is_retried(
    producer: Driven, consumer: Driven, model: LlamaForCausalLM, fault: Fault
) -> None:
    pair = Pair(producer, consumer)
    pair.faults.fail_puts(3)
    pair.start(0, 1)
    for _ in range(400):
        for stage in (producer, consumer):
            pair.step(stage)
        while pair.mail.pending:
            pair.deliver(pair.mail.deliver())
        if not producer.host.has_work:
            CLOCK.advance(0.5)
        if consumer.endings("q0'"):
            break
    assert not [o.error for o in producer.outputs("q0") + consumer.outputs("q0'") if o.error]
    assert fault.error is None
    rows = torch.stack(MADE["q0"])
    assert consumer.tokens("q0'") == expected_tokens(model, rows, ROWS, TOKENS)
    pair.settle()


@pytest.mark.fault("put-fails")
def test_a_put_that_fails_for_ever_ends_the_request_at_both_ends(
    producer: Driven, consumer: Driven, fault: Fault
) -> None:
    pair = Pair(producer, consumer)
    pair.faults.fail_puts(None, "q0/")
    pair.start(0, 1)
    pair.start(1, 1)
    for _ in range(400):
        for stage in (producer, consumer):
            pair.step(stage)
        while pair.mail.pending:
            pair.deliver(pair.mail.deliver())
        if not producer.host.has_work:
            CLOCK.advance(0.5)
        if consumer.endings("q1'") and "q0" in pair.over:
            break
    errors = Counter(type(from_wire(o.error)) for o in producer.outputs("q0") if o.error)
    assert errors == {fault.error: 1}
    assert [o.finish for o in consumer.endings("q1'")] == ["length"]
    pair.settle()
    consumer.assert_empty()
