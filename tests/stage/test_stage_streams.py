"""A stream edge between two real stages: rows arrive while both run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from antiphon.core.budget import EdgeLimits
from antiphon.core.options import InEdge, OutEdge
from antiphon.stage.messages import Abort, Sleep, Wake
from engine_pool import EnginePool
from tiny import Driven, reference, tiny_spec
from tiny_specs import CRAMPED
from tiny_streams import MADE, Chain, expected_tokens

PROMPT = [5, 17, 80, 3, 44, 91, 12]
ROWS = 4  # of the consumer's prompt
TOKENS = 40  # of both
SIZES = pytest.mark.parametrize("chunk", [1, 4, 25, 0], ids=["1", "4", "25", "all"])
TIGHT = EdgeLimits(request_chunks=2)


def producer_spec(name: str, model: str, **over: Any) -> Any:
    edges = (
        OutEdge("rows", "tiny_streams:RowChunksOut", stream=True),
        OutEdge("tight", "tiny_streams:RowChunksOut", stream=True, limits=TIGHT),
        OutEdge("whole", "tiny_streams:RowChunksOut"),
    )
    return tiny_spec(name, model, "streams", outputs=edges, **over)


def consumer_spec(name: str, model: str, **over: Any) -> Any:
    edges = (
        InEdge("rows", "tiny_streams:RowStreamIn", stream=True),
        InEdge("tight", "tiny_streams:RowStreamIn", stream=True),
        InEdge("whole", "tiny_streams:RowStreamIn"),
    )
    return tiny_spec(name, model, "streams", inputs=edges, enable_prompt_embeds=True, **over)


@pytest.fixture(scope="module")
def producers(engines: EnginePool, model_a: str) -> dict[str, Driven]:
    return {
        "roomy": engines.stage(producer_spec("producer", model_a)),
        "cramped": engines.stage(producer_spec("cramped-producer", model_a, **CRAMPED)),
        "overlapped": engines.stage(
            producer_spec("overlapped-producer", model_a, async_scheduling=True)
        ),
        "cramped_overlapped": engines.stage(
            producer_spec("cramped-overlapped-producer", model_a, async_scheduling=True, **CRAMPED)
        ),
    }


@pytest.fixture(scope="module")
def consumers(engines: EnginePool, model_b: str) -> dict[str, Driven]:
    return {
        "roomy": engines.stage(consumer_spec("consumer", model_b)),
        "cramped": engines.stage(consumer_spec("cramped-consumer", model_b, **CRAMPED)),
        "overlapped": engines.stage(
            consumer_spec("overlapped-consumer", model_b, async_scheduling=True)
        ),
        "cramped_overlapped": engines.stage(
            consumer_spec("cramped-overlapped-consumer", model_b, async_scheduling=True, **CRAMPED)
        ),
    }


@pytest.fixture(scope="module")
def model(model_b: str) -> LlamaForCausalLM:
    return reference(model_b)


def prompt_of(index: int) -> list[int]:
    return [1 + (token + 7 * index) % 100 for token in PROMPT]


def start(chain: Chain, index: int, *, chunk: int, edge: str = "rows", tokens: int = TOKENS) -> str:
    """One request at both stages; its id at the producer."""
    uid = f"r{index}"
    sampling = {"max_tokens": tokens}
    chain.producer.submit(
        uid, prompt_of(index), edges=(edge,), params={"chunk": chunk}, sampling=sampling
    )
    chain.consumer.submit(f"{uid}'", waits_for=edge, params={"prompt": ROWS}, sampling=sampling)
    return uid


def check(chain: Chain, uid: str, model: LlamaForCausalLM, tokens: int = TOKENS) -> None:
    rows = torch.stack(MADE[uid])
    assert len(rows) == len(PROMPT) + tokens - 1
    assert chain.consumer.tokens(f"{uid}'") == expected_tokens(model, rows, ROWS, tokens)


def fresh(producer: Driven, consumer: Driven) -> Chain:
    producer.clear()
    consumer.clear()
    return Chain(producer, consumer)


def assert_empty(chain: Chain) -> None:
    chain.producer.assert_empty()
    chain.consumer.assert_empty()
    assert chain.producer.inspect().connector_entries == 0
    outflow = chain.producer.scheduler.coordinator.outflow
    assert all(edge.chunks == 0 for edge in outflow.statistics().values())


KINDS = pytest.mark.parametrize("kind", ["roomy", "cramped", "overlapped", "cramped_overlapped"])


@SIZES
@KINDS
@pytest.mark.parametrize("batch", [1, 8])
def test_tokens_are_those_of_transformers_for_any_chunk_size(
    request: pytest.FixtureRequest, model: LlamaForCausalLM, kind: str, batch: int, chunk: int
) -> None:
    """With preemption of both (cramped), and under asynchronous scheduling (overlapped)."""
    stages = [request.getfixturevalue(name)[kind] for name in ("producers", "consumers")]
    chain = fresh(*stages)
    uids = [start(chain, index, chunk=chunk) for index in range(batch)]
    chain.run()
    for uid in uids:
        check(chain, uid, model)
    if kind.startswith("cramped") and batch > 1:
        assert any(uid in chain.preempted for uid in uids)
        assert chunk == 0 or any(f"{uid}'" in chain.preempted for uid in uids)
    assert_empty(chain)


@KINDS
@pytest.mark.parametrize("batch", [1, 8])
def test_a_full_edge_gives_the_same(
    request: pytest.FixtureRequest, model: LlamaForCausalLM, kind: str, batch: int
) -> None:
    """C22: chunk mode and full mode."""
    stages = [request.getfixturevalue(name)[kind] for name in ("producers", "consumers")]
    chain = fresh(*stages)
    uids = [start(chain, index, chunk=0, edge="whole") for index in range(batch)]
    chain.run()
    for uid in uids:
        check(chain, uid, model)
    assert_empty(chain)


def test_rows_matter(
    producers: dict[str, Driven], consumers: dict[str, Driven], model: LlamaForCausalLM
) -> None:
    """The negative control: rows shifted by one give other tokens."""
    chain = fresh(producers["roomy"], consumers["roomy"])
    uid = start(chain, 0, chunk=1)
    chain.run()
    rows = torch.stack(MADE[uid])
    shifted = torch.cat([rows[:ROWS], rows[ROWS + 1 :], rows[ROWS : ROWS + 1]])
    assert chain.consumer.tokens(f"{uid}'") != expected_tokens(model, shifted, ROWS, TOKENS)


def test_past_the_end_tokens_are_padded(
    producers: dict[str, Driven], consumers: dict[str, Driven], model: LlamaForCausalLM
) -> None:
    """C102: token r has row r; past the last row, and never before the end is known, padding."""
    chain = fresh(producers["roomy"], consumers["roomy"])
    chain.producer.submit(
        "r0", PROMPT, edges=("rows",), params={"chunk": 1}, sampling={"max_tokens": 10}
    )
    chain.consumer.submit(
        "r0'", waits_for="rows", params={"prompt": ROWS}, sampling={"max_tokens": TOKENS}
    )
    chain.run()
    rows = torch.stack(MADE["r0"])
    assert chain.consumer.tokens("r0'") == expected_tokens(model, rows, ROWS, TOKENS)
    assert_empty(chain)


def test_a_starving_stage_has_no_work(
    producers: dict[str, Driven], consumers: dict[str, Driven], model: LlamaForCausalLM
) -> None:
    chain = fresh(producers["roomy"], consumers["roomy"])
    uid = start(chain, 0, chunk=1)
    chain.producer.host.step()
    chain.producer.host.step()
    chain.forward()
    chain.consumer.run()
    steps = chain.consumer.inspect().steps
    assert not chain.consumer.host.has_work
    assert chain.consumer.tokens(f"{uid}'")
    assert chain.consumer.scheduler.has_requests() is False
    chain.run()
    check(chain, uid, model)
    assert chain.consumer.inspect().steps > steps


def test_a_full_edge_budget_parks_the_producer(
    producers: dict[str, Driven], consumers: dict[str, Driven], model: LlamaForCausalLM
) -> None:
    chain = fresh(producers["roomy"], consumers["roomy"])
    uid = start(chain, 0, chunk=1, edge="tight")
    chain.producer.run()
    made = len(chain.producer.tokens(uid))
    assert made < TOKENS
    assert uid in chain.producer.scheduler.parking
    assert not chain.producer.host.has_work
    chain.run()
    check(chain, uid, model)
    assert chain.producer.scheduler.coordinator.outflow.statistics()["tight"].blockings > 0
    assert_empty(chain)


@pytest.mark.parametrize("steps", range(1, 40, 3))
@pytest.mark.parametrize("end", ["producer", "consumer"])
def test_either_end_can_be_aborted_at_any_step(
    producers: dict[str, Driven], consumers: dict[str, Driven], steps: int, end: str
) -> None:
    """As the orchestrator does it: a request that ends at one stage ends at the other."""
    chain = fresh(producers["cramped"], consumers["cramped"])
    for index in range(3):
        start(chain, index, chunk=2, edge="tight")
    for _ in range(steps):
        chain.forward()
        chain.producer.host.step()
        chain.consumer.host.step()
    first, second = chain.producer, chain.consumer
    if end == "consumer":
        first, second = second, first
    for stage in (first, second):
        stage.host.handle(Abort(["r1", "r1'"], 1))
    chain.run()
    for uid in ("r0", "r2"):
        assert len(chain.consumer.tokens(f"{uid}'")) == TOKENS
    assert_empty(chain)


def test_a_sleeping_stage_makes_nothing(
    producers: dict[str, Driven], consumers: dict[str, Driven], model: LlamaForCausalLM
) -> None:
    """C55, C123: room on an edge and rows that come meanwhile start nothing; both go on as if."""
    chain = fresh(producers["roomy"], consumers["roomy"])
    uids = [start(chain, index, chunk=1, edge="tight") for index in range(2)]
    for _ in range(6):
        chain.forward()
        for stage in (chain.producer, chain.consumer):
            if stage.host.has_work:
                stage.host.step()
    chain.producer.run()
    chain.consumer.run()
    for stage in (chain.producer, chain.consumer):
        stage.ask(Sleep(1, 1))
        assert stage.inspect().free_blocks == stage.inspect().total_blocks - 1
    said = [len(chain.producer.tokens(uid)) for uid in uids]
    chain.forward()
    chain.consumer.submit("late'", [1, 2, 3], sampling={"max_tokens": 3})
    chain.run()
    assert [len(chain.producer.tokens(uid)) for uid in uids] == said
    assert not chain.consumer.tokens("late'")
    for stage in (chain.producer, chain.consumer):
        stage.ask(Wake(None, 2))
    chain.run()
    for uid in uids:
        check(chain, uid, model)
    assert len(chain.consumer.tokens("late'")) == 3
    assert_empty(chain)
