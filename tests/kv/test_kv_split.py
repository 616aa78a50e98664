"""A request that is computed at one stage and goes on at another says what it would have said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from transformers import LlamaForCausalLM

from antiphon.connector.runs import new_run_token
from antiphon.core.kv_handoff import KvTransfer
from antiphon.core.options import ConnectorSpec
from antiphon.stage.messages import Abort
from engine_pool import EnginePool
from tiny import BLOCK, Driven, reference
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

TOKENS = 24
LENGTHS = (1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 100)
# 7 blocks can be given out, and a step takes 48 tokens.
CRAMPED: dict[str, Any] = {
    "max_model_len": 192,
    "max_num_batched_tokens": 48,
    "kv_cache_memory_bytes": 8 * 32768,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "roomy": {},
    "cached": {"enable_prefix_caching": True},
    "cramped": CRAMPED,
    "overlapped": {"async_scheduling": True},
    "all": {"async_scheduling": True, "enable_prefix_caching": True, **CRAMPED},
}
HOW = pytest.mark.parametrize("how", SETTINGS)


@pytest.fixture(scope="module")
def judge(model: str) -> LlamaForCausalLM:
    return reference(model)


@pytest.fixture(scope="module")
def stages(engines: EnginePool, model: str) -> dict[str, tuple[Driven, Driven]]:
    return {
        how: (
            engines.stage(producer_spec(f"prefill-{how}", model, **over)),
            engines.stage(consumer_spec(f"decode-{how}", model, **over)),
        )
        for how, over in SETTINGS.items()
    }


@pytest.fixture
def chain(stages: dict[str, tuple[Driven, Driven]], how: str) -> Iterator[Chain]:
    producer, consumer = stages[how]
    producer.clear()
    consumer.clear()
    chain = Chain(producer, consumer)
    yield chain
    assert_empty(chain)


@HOW
@pytest.mark.parametrize("length", LENGTHS)
def test_a_split_request_goes_on_exactly(
    chain: Chain, how: str, length: int, judge: LlamaForCausalLM
) -> None:
    prompt = prompt_of(1, length)
    start(chain, "r", prompt, TOKENS)
    chain.run()
    assert chain.producer.tokens("r") == greedy(judge, prompt, 1)
    assert answered(chain, "r", TOKENS) == greedy(judge, prompt, TOKENS)
    # All of the prompt came from the other stage; what prefix caching finds need not be loaded.
    local = chain.consumer.cached_tokens("r'")
    assert chain.consumer.external_tokens("r'") + local == length


@HOW
def test_a_batch_goes_on_exactly(chain: Chain, how: str, judge: LlamaForCausalLM) -> None:
    """Eight at once, of other lengths; a cramped stage preempts some of them."""
    prompts = {f"r{i}": prompt_of(i, 5 + 9 * i) for i in range(8)}
    for uid, prompt in prompts.items():
        start(chain, uid, prompt, TOKENS)
    chain.run()
    for uid, prompt in prompts.items():
        assert answered(chain, uid, TOKENS) == greedy(judge, prompt, TOKENS), uid
    if how in ("cramped", "all"):
        assert chain.preempted


@HOW
def test_the_producer_ends_with_the_transfer(chain: Chain, how: str) -> None:
    """Nothing is decoded there that would be thrown away, and its end is an ordinary stop."""
    start(chain, "r", prompt_of(2, 40), TOKENS)
    chain.run()
    (end,) = chain.producer.endings("r")
    assert (end.finish, end.error) == ("stop", None)
    assert len(chain.producer.tokens("r")) == 1


@HOW
def test_others_go_on_while_one_is_aborted(chain: Chain, how: str, judge: LlamaForCausalLM) -> None:
    prompts = {f"r{i}": prompt_of(20 + i, 30 + i) for i in range(4)}
    for uid, prompt in prompts.items():
        start(chain, uid, prompt, TOKENS)
    chain.producer.host.step()
    chain.forward()
    chain.producer.host.handle(Abort(["r1"], 1))
    chain.consumer.host.handle(Abort(["r1'"], 1))
    chain.run()
    for uid in ("r0", "r2", "r3"):
        assert answered(chain, uid, TOKENS) == greedy(judge, prompts[uid], TOKENS), uid
    discarded = [ref.key for ref in chain.producer.refs() if ref.uid == "r1" and ref.key]
    chain.producer.host.scheduler.discard(discarded)  # as the orchestrator would
    chain.run()


@HOW
def test_a_prompt_that_ends_with_its_first_token_is_handed_on(
    chain: Chain, how: str, judge: LlamaForCausalLM
) -> None:
    """C88: the criterion counts, not how the request ends."""
    prompt = prompt_of(3, 20)
    first = greedy(judge, prompt, 1)
    chain.producer.submit(
        "r", prompt, edges=("cache",), sampling={"max_tokens": 9, "stop_token_ids": first}
    )
    chain.consumer.submit("r'", waits_for="cache", sampling={"max_tokens": TOKENS - 1})
    chain.run()
    assert answered(chain, "r", TOKENS) == greedy(judge, prompt, TOKENS)


@HOW
def test_the_same_prompt_again(chain: Chain, how: str, judge: LlamaForCausalLM) -> None:
    """What prefix caching kept of the first time, on either side, changes nothing."""
    prompt = prompt_of(4, 70)
    for uid in ("a", "b", "c"):
        start(chain, uid, prompt, TOKENS)
        chain.run()
        assert answered(chain, uid, TOKENS) == greedy(judge, prompt, TOKENS)


def special_prompts(judge: LlamaForCausalLM) -> tuple[int, dict[int, list[int]]]:
    """A token, and prompts whose answers have it first at different places."""
    places: dict[int, dict[int, list[int]]] = {}
    for index in range(60):
        prompt = prompt_of(100 + index, 3 + index % 40)
        answer = greedy(judge, prompt, TOKENS)
        for at, token in enumerate(answer):
            if answer.index(token) == at:
                places.setdefault(token, {}).setdefault(at, prompt)
    return max(places.items(), key=lambda item: len(item[1]))


@pytest.fixture(scope="module")
def special(judge: LlamaForCausalLM) -> tuple[int, dict[int, list[int]]]:
    token, prompts = special_prompts(judge)
    assert len(prompts) >= 5
    return token, prompts


@pytest.fixture(scope="module")
def writers(
    engines: EnginePool, model: str, special: tuple[int, dict[int, list[int]]]
) -> dict[str, Driven]:
    """Stages that hand on at the special token."""
    transfer = KvTransfer("special_token", token_id=special[0])
    return {
        how: engines.stage(producer_spec(f"writer-{how}", model, transfer, **over))
        for how, over in SETTINGS.items()
    }


@HOW
def test_a_request_goes_on_behind_a_special_token(
    stages: dict[str, tuple[Driven, Driven]],
    writers: dict[str, Driven],
    how: str,
    special: tuple[int, dict[int, list[int]]],
    judge: LlamaForCausalLM,
) -> None:
    """At any place, in a batch: the producer writes up to the token, the consumer what follows."""
    writer, consumer = writers[how], stages[how][1]
    writer.clear()
    consumer.clear()
    chain = Chain(writer, consumer)
    token, prompts = special
    for at, prompt in prompts.items():
        start(chain, f"r{at}", prompt, TOKENS)
    chain.run()
    for at, prompt in prompts.items():
        assert len(writer.tokens(f"r{at}")) == at + 1
        assert writer.tokens(f"r{at}")[-1] == token
        assert answered(chain, f"r{at}", TOKENS) == greedy(judge, prompt, TOKENS)
    assert_empty(chain)


def test_a_token_that_never_comes_ends_the_consumer(
    stages: dict[str, tuple[Driven, Driven]], writers: dict[str, Driven], judge: LlamaForCausalLM
) -> None:
    """An empty end, not a wait."""
    writer, consumer = writers["roomy"], stages["roomy"][1]
    writer.clear()
    consumer.clear()
    chain = Chain(writer, consumer)
    start(chain, "r", prompt_of(5, 12), 1)
    chain.run()
    (end,) = consumer.endings("r'")
    assert (end.finish, end.error, consumer.tokens("r'")) == ("stop", None, [])
    assert_empty(chain)


def test_a_finished_request_is_handed_on(
    engines: EnginePool,
    model: str,
    stages: dict[str, tuple[Driven, Driven]],
    judge: LlamaForCausalLM,
) -> None:
    producer = engines.stage(producer_spec("finisher", model, KvTransfer("request_finished")))
    consumer = stages["roomy"][1]
    consumer.clear()
    chain = Chain(producer, consumer)
    prompt = prompt_of(6, 33)
    producer.submit("r", prompt, edges=("cache",), sampling={"max_tokens": 10})
    consumer.submit("r'", waits_for="cache", sampling={"max_tokens": TOKENS - 10})
    chain.run()
    assert len(producer.tokens("r")) == 10
    assert answered(chain, "r", TOKENS) == greedy(judge, prompt, TOKENS)
    assert_empty(chain)


def test_a_consumer_may_sample_the_first_token_itself(
    engines: EnginePool,
    model: str,
    stages: dict[str, tuple[Driven, Driven]],
    judge: LlamaForCausalLM,
) -> None:
    """Then sampling parameters mean what they mean in one stage: here a seed."""
    producer = stages["roomy"][0]
    consumer = engines.stage(consumer_spec("resampler", model, adapter="CacheInput"))
    producer.clear()
    prompt = prompt_of(7, 50)
    chain = Chain(producer, consumer)
    sampling = {"max_tokens": TOKENS, "temperature": 1.0, "seed": 7, "presence_penalty": 0.5}
    producer.submit("r", prompt, edges=("cache",), sampling={"max_tokens": 1})
    consumer.submit("r'", waits_for="cache", sampling=sampling)
    chain.run()
    consumer.submit("whole", prompt, sampling=sampling)
    consumer.run()
    assert consumer.tokens("r'") == consumer.tokens("whole")
    assert consumer.external_tokens("r'") == len(prompt) - 1
    assert_empty(chain)


def test_over_shared_memory(engines: EnginePool, model: str, judge: LlamaForCausalLM) -> None:
    connector = ConnectorSpec("shm", new_run_token())
    producer = engines.stage(producer_spec("shm-prefill", model, connector=connector))
    consumer = engines.stage(consumer_spec("shm-decode", model, connector=connector))
    chain = Chain(producer, consumer)
    prompts = {f"r{i}": prompt_of(40 + i, 20 + 11 * i) for i in range(8)}
    for uid, prompt in prompts.items():
        start(chain, uid, prompt, TOKENS)
    chain.run()
    for uid, prompt in prompts.items():
        assert answered(chain, uid, TOKENS) == greedy(judge, prompt, TOKENS), uid
    assert_empty(chain)
