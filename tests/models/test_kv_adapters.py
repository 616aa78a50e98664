"""The adapters of edges that hand nothing but a cache on."""

from __future__ import annotations

import pytest
import torch

from antiphon.core.prompt_plan import PromptPlan
from antiphon.errors import AdapterError
from antiphon.models.kv_adapters import CacheAndTokenInput, CacheInput, CacheOutput
from antiphon.payload.adapters import Input, OutputNeeds, StageContext, StepRows
from antiphon.payload.kv import KvGroup, KvHeader, KvSnapshot
from antiphon.payload.types import Payload

PROMPT = (7, 8, 9)
SAMPLED = 42


def context() -> StageContext:
    return StageContext("decode", "cache", "", {})


def snapshot(length: int, token_ids: tuple[int, ...], salt: str | None = None) -> KvSnapshot:
    group = KvGroup(("layer",), num_kv_heads=1, head_size=2, block_size=4, layout="x")
    header = KvHeader("model", "float32", "blocks", (group,), length, salt=salt)
    return KvSnapshot(header, (((torch.zeros(1, 16),),),), token_ids)


def payload(length: int, token_ids: tuple[int, ...], salt: str | None = None) -> Payload:
    return Payload({}, cache=snapshot(length, token_ids, salt), token_ids=token_ids)


BOTH = [CacheInput, CacheAndTokenInput]


def planned(adapter: type[CacheInput], given: Payload) -> Input:
    return adapter(context()).open("u", {}).on_payload(given, last=True)


def test_the_producers_end_wants_nothing_and_adds_nothing() -> None:
    """The edge's one payload is the cache alone, and no step is held up for it."""
    assert CacheOutput.needs == OutputNeeds()
    adapter = CacheOutput(StageContext("prefill", "cache", "", {})).open("u", {})
    assert adapter.on_tokens([1, 2]) == []
    assert adapter.on_rows(StepRows(0, None, {})) == []
    assert adapter.on_end() == []


def test_before_the_sampled_token_the_consumer_samples_it_itself() -> None:
    given = payload(3, (*PROMPT, SAMPLED))
    made = planned(CacheInput, given)
    assert made == Input(PromptPlan(PROMPT), cache=given.cache)


def test_after_the_sampled_token_it_is_part_of_the_prompt() -> None:
    given = payload(3, (*PROMPT, SAMPLED))
    made = planned(CacheAndTokenInput, given)
    assert made == Input(PromptPlan((*PROMPT, SAMPLED)), cache=given.cache)


def test_before_a_token_that_was_never_sampled() -> None:
    """A cache may come without the token behind it."""
    assert planned(CacheInput, payload(3, PROMPT)).plan == PromptPlan(PROMPT)


def test_after_a_token_that_was_never_sampled_is_refused() -> None:
    with pytest.raises(AdapterError, match=r"covers 3 tokens and came with 3.*takes 4"):
        planned(CacheAndTokenInput, payload(3, PROMPT))


@pytest.mark.parametrize("adapter", BOTH)
def test_fewer_tokens_than_the_cache_covers_are_refused(adapter: type[CacheInput]) -> None:
    with pytest.raises(AdapterError, match="covers 9 tokens and came with 4"):
        planned(adapter, payload(9, (*PROMPT, SAMPLED)))


@pytest.mark.parametrize("adapter", BOTH)
def test_a_lost_cache_is_computed_again_from_the_same_prompt(adapter: type[CacheInput]) -> None:
    """The plan is that of a cache that has arrived; only the cache is missing."""
    kept = planned(adapter, payload(3, (*PROMPT, SAMPLED)))
    lost = planned(adapter, Payload({}, token_ids=(*PROMPT, SAMPLED)))
    assert lost == Input(kept.plan)


@pytest.mark.parametrize("adapter", BOTH)
@pytest.mark.parametrize("token_ids", [(), (SAMPLED,)])
def test_a_lost_cache_of_nothing_is_refused(
    adapter: type[CacheInput], token_ids: tuple[int, ...]
) -> None:
    """An empty prompt must not reach the engine."""
    with pytest.raises(AdapterError, match="nothing to go on from"):
        planned(adapter, Payload({}, token_ids=token_ids))


def test_the_cache_keeps_its_salt() -> None:
    """Blocks of another conditioning must not be found by requests without it."""
    made = planned(CacheInput, payload(3, (*PROMPT, SAMPLED), salt="rows of u"))
    assert made.plan == PromptPlan(PROMPT, salt="rows of u")


def test_without_a_cache_there_is_no_request() -> None:
    assert CacheInput(context()).open("u", {}).on_end() == Input()
