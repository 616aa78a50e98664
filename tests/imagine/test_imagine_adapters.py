"""What a cache must be like to be drawn from, and what becomes of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from antiphon.core.prompt_plan import PromptPlan, validate_plan
from antiphon.errors import AdapterError, KVTransferError, PayloadError
from antiphon.models.imagine.adapters import COMPANION, DrawInput
from antiphon.models.imagine.sizes import DrawSizes
from antiphon.models.imagine.topology import DRAW
from antiphon.models.imagine.weights import draw_checkpoint
from antiphon.payload.adapters import Input, StageContext
from antiphon.payload.kv import KvGroup, KvHeader, KvSnapshot
from antiphon.payload.types import Payload, Scalar

LAYERS = tuple(f"model.layers.{number}.self_attn.attn" for number in range(30))
GROUP = KvGroup(LAYERS, num_kv_heads=3, head_size=64, block_size=128, layout="x")
HEADER = KvHeader("thinker", "float32", "tokens", (GROUP,), length=2)


@pytest.fixture
def factory(empty_cache_folder: Path) -> DrawInput:
    return DrawInput(StageContext("draw", "cache", str(draw_checkpoint()), {}))


def payload(header: KvHeader) -> Payload:
    """A payload with this header; only the header is looked at."""
    layers = tuple(tuple((torch.zeros(2, 2, 3, 64),) for _ in g.layers) for g in header.groups)
    cache = KvSnapshot(header, layers, (1, 2, 3))
    return Payload({}, cache=cache, token_ids=cache.token_ids)


def drawn(factory: DrawInput, given: Payload, **params: Scalar) -> Input:
    return factory.open("u", params).on_payload(given, last=True)


@pytest.mark.parametrize(("params", "variant"), [({}, 0), ({COMPANION: 0}, 0), ({COMPANION: 5}, 5)])
def test_a_cache_becomes_the_request_for_one_picture(
    factory: DrawInput, params: dict[str, Scalar], variant: int
) -> None:
    given = payload(HEADER)
    made = drawn(factory, given, **params)
    assert made == Input(PromptPlan((variant,)), cache=given.cache)
    assert made.plan is not None
    validate_plan(made.plan, int(str(DRAW.engine["max_model_len"])), 0, DrawSizes().variants)


def test_companions_share_one_cache(factory: DrawInput) -> None:
    given = payload(HEADER)
    made = [drawn(factory, given, companion=number) for number in range(3)]
    assert all(one.cache is given.cache for one in made)
    assert [one.plan for one in made] == [PromptPlan((number,)) for number in range(3)]


@pytest.mark.parametrize("companion", [-1, 64, "1", 1.0, True])
def test_a_companion_without_a_variant_is_refused(factory: DrawInput, companion: Scalar) -> None:
    """Never the picture of another."""
    with pytest.raises(AdapterError, match="numbered from 0 to 63"):
        factory.open("u", {COMPANION: companion})


def test_a_lost_cache_is_an_error(factory: DrawInput) -> None:
    """Nothing here could compute it."""
    with pytest.raises(KVTransferError, match="lost"):
        drawn(factory, Payload({}, token_ids=(1, 2, 3)))


def test_no_text_gives_no_picture(factory: DrawInput) -> None:
    assert factory.open("u", {}).on_end() == Input()


def change(**fields: object) -> KvHeader:
    return msgspec.structs.replace(HEADER, **fields)


def groups(**fields: object) -> KvHeader:
    return change(groups=(msgspec.structs.replace(GROUP, **fields),))


REFUSED = {
    "blocks": (change(form="blocks"), "given in blocks"),
    "another dtype": (change(dtype="uint8"), "is uint8; the network attends to float32"),
    "another model's layers": (
        groups(layers=("h.0.attn",)),
        "no layer 'model.layers.4.*it has 1, from 'h.0.attn",
    ),
    "a layer too few": (groups(layers=LAYERS[:28]), "no layer 'model.layers.28"),
    "another number of heads": (groups(num_kv_heads=4), "num_kv_heads is 4 .* attends to 3"),
    "another head size": (groups(head_size=128), "head_size is 128 .* attends to 64"),
    "one layer with other heads": (
        change(
            groups=(
                msgspec.structs.replace(GROUP, layers=LAYERS[:20]),
                msgspec.structs.replace(GROUP, layers=LAYERS[20:], num_kv_heads=1),
            )
        ),
        "num_kv_heads is 1 in layer 'model.layers.20",
    ),
}


@pytest.mark.parametrize(("header", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_another_kind_of_cache_is_refused(
    factory: DrawInput, header: KvHeader, message: str
) -> None:
    """Before it could end the step for everybody."""
    with pytest.raises(PayloadError, match=message):
        drawn(factory, payload(header))


ACCEPTED = {
    "half precision": change(dtype="bfloat16"),
    "more layers": groups(layers=(*LAYERS, "model.layers.30.self_attn.attn")),
    "layers in several groups": change(
        groups=(
            msgspec.structs.replace(GROUP, layers=LAYERS[15:]),
            msgspec.structs.replace(GROUP, layers=LAYERS[:15], block_size=16),
        )
    ),
    "a text that begins later": change(first_position=7),
}


@pytest.mark.parametrize("header", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_what_makes_no_difference_is_accepted(factory: DrawInput, header: KvHeader) -> None:
    assert drawn(factory, payload(header)).cache is not None
