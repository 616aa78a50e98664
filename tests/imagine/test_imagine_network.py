"""What is drawn: the picture that the weights and the cache say, and all of the cache matters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from antiphon.models.imagine.network import DrawNetwork
from antiphon.models.imagine.sizes import DrawSizes
from antiphon.models.imagine.weights import draw_tensors
from antiphon.payload.kv import KeysValues
from drawn import cache_of, drawn

SIZES = DrawSizes()
TOKENS = [5, 17, 90, 3, 44, 61, 61, 8, 100, 23, 77, 12]
LENGTH = len(TOKENS)
Cache = dict[str, KeysValues]
Change = Callable[[Cache], tuple[Cache, int]]


def picture(
    network: DrawNetwork, cache: Cache, next_position: int = LENGTH, variant: int = 0
) -> torch.Tensor:
    with torch.inference_mode():
        layers = [cache[name] for name in SIZES.kv_layers]
        return network(layers, next_position, torch.tensor(variant))


@pytest.fixture(scope="module")
def plain(network: DrawNetwork, text: Cache) -> torch.Tensor:
    return picture(network, text)


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Mean over all values, which go from 0 to 1."""
    return (one - other).abs().mean().item()


@pytest.mark.parametrize("variant", [0, 7])
def test_draws_what_an_independent_reference_draws(
    network: DrawNetwork, text: Cache, variant: int
) -> None:
    """Keys and values are those of a transformers model; double precision against single."""
    expected = drawn(draw_tensors(SIZES), SIZES, text, LENGTH, variant)
    found = picture(network, text, variant=variant).double().numpy()
    assert found.shape == expected.shape == (128, 128, 3)
    assert np.abs(found - expected).max() < 1e-4
    other = picture(network, text, variant=variant + 1).numpy()
    assert np.abs(other - expected).mean() > 0.05  # it could have differed


def test_any_other_sizes_work_as_the_reference(text: Cache) -> None:
    """Nothing in the code relies on the built-in sizes."""
    names = ("model.layers.29.self_attn.attn", "model.layers.0.self_attn.attn")
    sizes = DrawSizes(grid=5, patch=3, hidden=40, heads=3, inner=24, waves=2, kv_layers=names)
    tensors = draw_tensors(sizes, seed=1)
    small = DrawNetwork(sizes).eval()
    small.load_state_dict({name: torch.from_numpy(array) for name, array in tensors.items()})
    with torch.inference_mode():
        found = small([text[name] for name in names], 40, torch.tensor(2)).double().numpy()
    assert np.abs(found - drawn(tensors, sizes, text, 40, 2)).max() < 1e-4


def test_the_same_cache_gives_the_same_bits(network: DrawNetwork, text: Cache) -> None:
    copy = {name: (keys.clone(), values.clone()) for name, (keys, values) in text.items()}
    assert torch.equal(picture(network, text), picture(network, copy))


def test_the_cache_is_left_as_it_was(network: DrawNetwork, text: Cache) -> None:
    before = {name: (keys.clone(), values.clone()) for name, (keys, values) in text.items()}
    picture(network, text)
    for name, (keys, values) in text.items():
        assert torch.equal(keys, before[name][0])
        assert torch.equal(values, before[name][1])


def test_another_token_gives_another_picture(
    network: DrawNetwork, text: Cache, other: Cache
) -> None:
    assert difference(picture(network, text), picture(network, other)) > 0.02


def test_companions_differ_visibly(network: DrawNetwork, text: Cache) -> None:
    pictures = [picture(network, text, variant=variant) for variant in range(6)]
    pairs = [(a, b) for number, a in enumerate(pictures) for b in pictures[:number]]
    assert min(difference(a, b) for a, b in pairs) > 0.05


def test_a_picture_is_smooth_and_has_contrast(network: DrawNetwork, text: Cache) -> None:
    """No seams between patches, and not one grey plane."""
    found = picture(network, text)
    assert 0 <= found.min() <= found.max() <= 1
    assert found.std(dim=(0, 1)).min() > 0.1
    steps = torch.cat([found.diff(dim=0).flatten(), found.diff(dim=1).flatten()]).abs()
    assert steps.max() < 0.2


def each(cache: Cache, change: Callable[[torch.Tensor], torch.Tensor]) -> Cache:
    return {name: (change(keys), change(values)) for name, (keys, values) in cache.items()}


def layer(cache: Cache, number: int, made: Callable[[KeysValues], KeysValues]) -> Cache:
    name = SIZES.kv_layers[number]
    return cache | {name: made(cache[name])}


def without_heads(number: int) -> Callable[[KeysValues], KeysValues]:
    def change(pair: KeysValues) -> KeysValues:
        keys, values = (part.clone() for part in pair)
        keys[:, number] = values[:, number] = 0
        return keys, values

    return change


ORDER = torch.tensor([3, 0, 7, 1, 11, 2, 9, 10, 8, 4, 5, 6])
CHANGES: dict[str, Change] = {
    "last token dropped": lambda c: (each(c, lambda t: t[:-1]), LENGTH - 1),
    "first token dropped": lambda c: (each(c, lambda t: t[1:]), LENGTH),
    "positions permuted": lambda c: (each(c, lambda t: t[ORDER]), LENGTH),
    "read at another position": lambda c: (c, LENGTH + 1),
    **{
        f"values of layer {number} a token late": lambda c, number=number: (
            layer(c, number, lambda kv: (kv[0], kv[1].roll(1, 0))),
            LENGTH,
        )
        for number in range(4)
    },
    **{
        f"keys of layer {number} a token late": lambda c, number=number: (
            layer(c, number, lambda kv: (kv[0].roll(1, 0), kv[1])),
            LENGTH,
        )
        for number in range(4)
    },
    **{
        f"head {number} of layer 2 missing": lambda c, number=number: (
            layer(c, 2, without_heads(number)),
            LENGTH,
        )
        for number in range(3)
    },
    "keys for values": lambda c: ({name: (v, k) for name, (k, v) in c.items()}, LENGTH),
    "one layer for another": lambda c: (
        c | {SIZES.kv_layers[1]: c["model.layers.13.self_attn.attn"]},
        LENGTH,
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_every_part_of_the_cache_matters(
    network: DrawNetwork, text: Cache, plain: torch.Tensor, change: Change
) -> None:
    """What a hand-off can get wrong shows in the picture."""
    changed, next_position = change(text)
    assert difference(plain, picture(network, changed, next_position)) > 0.05


def test_queries_are_rotated_as_the_writers_keys(
    network: DrawNetwork, text: Cache, writer: LlamaForCausalLM
) -> None:
    """The same text a thousand positions further on gives the same picture, and only if it is read
    from there.
    """
    moved = cache_of(writer, TOKENS, first_position=1000)
    assert (moved[SIZES.kv_layers[0]][0] - text[SIZES.kv_layers[0]][0]).abs().max() > 1
    assert difference(picture(network, text), picture(network, moved, LENGTH + 1000)) < 1e-3
    assert difference(picture(network, text), picture(network, moved, LENGTH)) > 0.01
