"""The adapters of edges that hand nothing but a cache on."""

from __future__ import annotations

import pytest
import torch

from antiphon.core.prompt_plan import PromptPlan
from antiphon.errors import AdapterError, TopologyError
from antiphon.models.kv_adapters import CacheInput, CacheOutput
from antiphon.payload.adapters import Input, OutputNeeds, StageContext, StepRows
from antiphon.payload.kv import KvGroup, KvHeader, KvSnapshot
from antiphon.payload.types import Payload, Scalar

PROMPT = (7, 8, 9)
SAMPLED = 42


def context(**options: Scalar) -> StageContext:
    return StageContext("decode", "cache", "", options)


def snapshot(length: int, token_ids: tuple[int, ...], salt: str | None = None) -> KvSnapshot:
    group = KvGroup(("layer",), num_kv_heads=1, head_size=2, block_size=4, layout="x")
    header = KvHeader("model", "float32", "blocks", (group,), length, salt=salt)
    return KvSnapshot(header, (((torch.zeros(1, 16),),),), token_ids)


def payload(length: int, token_ids: tuple[int, ...], salt: str | None = None) -> Payload:
    return Payload({}, cache=snapshot(length, token_ids, salt), token_ids=token_ids)


def planned(resume: str, given: Payload) -> Input:
    return CacheInput(context(resume=resume)).open("u", {}).on_payload(given, last=True)


def test_the_producers_end_wants_nothing_and_adds_nothing() -> None:
    """The edge's one payload is the cache alone, and no step is held up for it."""
    assert CacheOutput.needs == OutputNeeds()
    adapter = CacheOutput(StageContext("prefill", "cache", "", {})).open("u", {})
    assert adapter.on_tokens([1, 2]) == []
    assert adapter.on_rows(StepRows(0, None, {})) == []
    assert adapter.on_end() == []


def test_before_the_sampled_token_the_consumer_samples_it_itself() -> None:
    given = payload(3, (*PROMPT, SAMPLED))
    made = planned("before", given)
    assert made == Input(PromptPlan(PROMPT), cache=given.cache)


def test_after_the_sampled_token_it_is_part_of_the_prompt() -> None:
    given = payload(3, (*PROMPT, SAMPLED))
    made = planned("after", given)
    assert made == Input(PromptPlan((*PROMPT, SAMPLED)), cache=given.cache)


def test_before_a_token_that_was_never_sampled() -> None:
    """A cache may come without the token behind it."""
    assert planned("before", payload(3, PROMPT)).plan == PromptPlan(PROMPT)


def test_after_a_token_that_was_never_sampled_is_refused() -> None:
    with pytest.raises(AdapterError, match=r"covers 3 tokens and came with 3.*after takes 4"):
        planned("after", payload(3, PROMPT))


@pytest.mark.parametrize("resume", ["before", "after"])
def test_fewer_tokens_than_the_cache_covers_are_refused(resume: str) -> None:
    with pytest.raises(AdapterError, match="covers 9 tokens and came with 4"):
        planned(resume, payload(9, (*PROMPT, SAMPLED)))


@pytest.mark.parametrize("resume", ["before", "after"])
def test_a_lost_cache_is_computed_again_from_the_same_prompt(resume: str) -> None:
    """The plan is that of a cache that has arrived; only the cache is missing."""
    kept = planned(resume, payload(3, (*PROMPT, SAMPLED)))
    lost = planned(resume, Payload({}, token_ids=(*PROMPT, SAMPLED)))
    assert lost == Input(kept.plan)


@pytest.mark.parametrize("resume", ["before", "after"])
@pytest.mark.parametrize("token_ids", [(), (SAMPLED,)])
def test_a_lost_cache_of_nothing_is_refused(resume: str, token_ids: tuple[int, ...]) -> None:
    """An empty prompt must not reach the engine."""
    with pytest.raises(AdapterError, match="nothing to go on from"):
        planned(resume, Payload({}, token_ids=token_ids))


def test_the_cache_keeps_its_salt() -> None:
    """Blocks of another conditioning must not be found by requests without it."""
    made = planned("before", payload(3, (*PROMPT, SAMPLED), salt="rows of u"))
    assert made.plan == PromptPlan(PROMPT, salt="rows of u")


def test_without_a_cache_there_is_no_request() -> None:
    assert CacheInput(context(resume="before")).open("u", {}).on_end() == Input()


@pytest.mark.parametrize("options", [{}, {"resume": "behind"}, {"resume": True}])
def test_a_wrong_option_is_the_authors_error(options: dict[str, Scalar]) -> None:
    with pytest.raises(TopologyError, match=r"edge cache: resume is .*'before' or 'after'"):
        CacheInput(context(**options))
