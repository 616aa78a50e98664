"""A cache that is not what it should be is refused before any cache is touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from transformers import LlamaForCausalLM

from antiphon.connector.inproc import InprocConnector
from antiphon.core.kv_handoff import KvSettings
from antiphon.stage.messages import Step
from engine_pool import EnginePool
from tiny import Driven, reference
from tiny_caches import (
    answered,
    assert_empty,
    consumer_spec,
    greedy,
    producer_spec,
    prompt_of,
    start,
)
from tiny_streams import Chain

TOKENS = 16
PROMPT = prompt_of(1, 50)
FAILS, RECOMPUTES = (
    KvSettings(on_failure=policy, checksum=True) for policy in ("fail", "recompute")
)
Tamper = Callable[[bytearray], bytearray]


def flipped(at: float) -> Tamper:
    """One byte is another, at this share of the payload."""

    def change(data: bytearray) -> bytearray:
        data[int(at * (len(data) - 1))] ^= 0x40
        return data

    return change


DAMAGE: dict[str, Tamper] = {
    "magic": flipped(0.0),
    "header": lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:],
    "first key": flipped(0.1),
    "middle": flipped(0.5),
    "last value": flipped(1.0),
    "truncated": lambda data: data[: len(data) // 2],
    "longer": lambda data: data + b"\0" * 64,
    "nothing": lambda data: bytearray(),
}


@pytest.fixture(scope="module")
def judge(model: str) -> LlamaForCausalLM:
    return reference(model)


@pytest.fixture(scope="module")
def consumer(engines: EnginePool, model: str) -> Driven:
    return engines.stage(consumer_spec("strict", model))


@pytest.fixture(scope="module")
def producers(engines: EnginePool, model: str) -> dict[str, Driven]:
    return {
        "fail": engines.stage(producer_spec("failing", model, settings=FAILS)),
        "recompute": engines.stage(producer_spec("recomputing", model, settings=RECOMPUTES)),
    }


@pytest.fixture
def connector() -> Iterator[InprocConnector]:
    """The run's store, from outside."""
    connector = InprocConnector("kv", 1 << 30)
    yield connector
    connector.close()


def chained(producer: Driven, consumer: Driven) -> Chain:
    producer.clear()
    consumer.clear()
    return Chain(producer, consumer)


def hand_over(chain: Chain, uid: str, tamper: Callable[[str], None] | None = None) -> None:
    """Run the producer to its ref, tamper with what is stored, and run both to the end."""
    chain.producer.run_until(lambda: any(ref.uid == uid for ref in chain.producer.refs()))
    (ref,) = (ref for ref in chain.producer.refs() if ref.uid == uid)
    if tamper is not None:
        tamper(ref.key)
    chain.run()


def failed_at_consumer(chain: Chain, uid: str) -> Any:
    (end,) = chain.consumer.endings(f"{uid}'")
    assert end.finish == "error"
    return end.error


def works_still(chain: Chain, judge: LlamaForCausalLM) -> None:
    prompt = prompt_of(2, 40)
    start(chain, "after", prompt, TOKENS)
    chain.run()
    assert answered(chain, "after", TOKENS) == greedy(judge, prompt, TOKENS)
    assert chain.consumer.external_tokens("after'") == 40
    assert_empty(chain)


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_damage_is_noticed(
    *,
    producers: dict[str, Driven],
    consumer: Driven,
    connector: InprocConnector,
    policy: str,
    damage: str,
    judge: LlamaForCausalLM,
) -> None:
    chain = chained(producers[policy], consumer)
    start(chain, "bystander", prompt_of(3, 33), TOKENS)
    start(chain, "r", PROMPT, TOKENS)

    def tamper(key: str) -> None:
        data = DAMAGE[damage](bytearray(connector.take(key)))
        connector.put(key, [data])

    hand_over(chain, "r", tamper)
    connector.close()
    assert answered(chain, "bystander", TOKENS) == greedy(judge, prompt_of(3, 33), TOKENS)
    if policy == "fail":
        assert failed_at_consumer(chain, "r").code == "payload"
    else:
        assert answered(chain, "r", TOKENS) == greedy(judge, PROMPT, TOKENS)
        assert consumer.external_tokens("r'") == 0
    works_still(chain, judge)


@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_a_lost_cache(
    producers: dict[str, Driven],
    consumer: Driven,
    connector: InprocConnector,
    policy: str,
    judge: LlamaForCausalLM,
) -> None:
    chain = chained(producers[policy], consumer)
    start(chain, "r", PROMPT, TOKENS)
    hand_over(chain, "r", lambda key: connector.delete([key]) and None)
    if policy == "fail":
        assert failed_at_consumer(chain, "r").code == "connector"
    else:
        assert answered(chain, "r", TOKENS) == greedy(judge, PROMPT, TOKENS)
    works_still(chain, judge)


def test_an_unnoticed_change_would_change_the_answer(
    engines: EnginePool,
    model: str,
    consumer: Driven,
    connector: InprocConnector,
    judge: LlamaForCausalLM,
) -> None:
    """The control: without a checksum wrong values are attended to, and it shows."""
    producer = engines.stage(producer_spec("unchecked", model))
    chain = chained(producer, consumer)
    start(chain, "r", PROMPT, TOKENS)

    def tamper(key: str) -> None:
        data = bytearray(connector.take(key))
        data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
        connector.put(key, [data])

    hand_over(chain, "r", tamper)
    assert consumer.endings("r'")[0].error is None
    assert answered(chain, "r", TOKENS) != greedy(judge, PROMPT, TOKENS)
    assert_empty(chain)


@pytest.mark.parametrize(
    ("what", "over", "says"),
    [
        ("weights", {}, "weights"),
        ("dtype", {"dtype": "bfloat16"}, "float32"),
        ("block size", {"block_size": 64, "kv_cache_memory_bytes": 64 * 32768}, "block_size"),
    ],
)
@pytest.mark.parametrize("policy", [FAILS, RECOMPUTES], ids=["fail", "recompute"])
def test_caches_of_other_engines_are_refused(
    *,
    engines: EnginePool,
    model: str,
    other_model: str,
    consumer: Driven,
    policy: KvSettings,
    what: str,
    over: dict[str, Any],
    says: str,
    judge: LlamaForCausalLM,
) -> None:
    weights = other_model if what == "weights" else model
    name = f"other-{what}-{policy.on_failure}"
    producer = engines.stage(producer_spec(name, weights, settings=policy, **over))
    chain = chained(producer, consumer)
    start(chain, "r", PROMPT, TOKENS)
    hand_over(chain, "r")
    if policy is FAILS:
        error = failed_at_consumer(chain, "r")
        assert error.code == "payload"
        assert says in error.message
    else:
        given = [*PROMPT, *producer.tokens("r")]
        rest = consumer.tokens("r'")
        assert rest == greedy(judge, given, len(rest))
        assert consumer.external_tokens("r'") == 0
    assert_empty(chain)


def test_the_producer_learns_that_its_cache_is_used_up(
    producers: dict[str, Driven], consumer: Driven
) -> None:
    chain = chained(producers["fail"], consumer)
    start(chain, "r", PROMPT, TOKENS)
    chain.run()
    used = [
        key
        for event in consumer.events
        if isinstance(event, Step)
        for keys in event.used.values()
        for key in keys
    ]
    assert used == [ref.key for ref in chain.producer.refs()]
    assert_empty(chain)
