"""What a generation model is given for the requests of a batch."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from antiphon.errors import PayloadError
from antiphon.payload.kv import KvMetadata, KvSnapshot
from antiphon.worker.kv_layout import BlockShape
from antiphon.worker.kv_model import GivenCaches
from paged import Engine

SHAPES = (BlockShape(4, 2, 3), BlockShape(8, 1, 5))
BLOCKS = ((7, 2, 3), (5, 1))
IDS = tuple(range(100, 111))


def snapshot(*, blocks: bool = False, **header: Any) -> tuple[KvSnapshot, list[torch.Tensor]]:
    """A cache of ten tokens, and keys and values of each layer."""
    engine = Engine(SHAPES)
    filled = engine.fill(BLOCKS, 10)
    made = engine.caches.extract(BLOCKS, 10, IDS, None, blocks=blocks).wait()
    changed = msgspec.structs.replace(made.header, **header)
    return KvSnapshot(changed, made.layers, made.token_ids), filled


def given(caches: dict[str, KvSnapshot]) -> GivenCaches:
    return GivenCaches(torch.device("cpu"), caches.get)


def test_caches_come_in_the_order_of_the_batch() -> None:
    cache, filled = snapshot(first_position=5)
    made = given({"a": cache}).arguments(["x", "a", "y"], np.array([0, 2, 6, 7]))
    assert made["past_key_values"][0] is made["past_key_values"][2] is None
    found = [torch.stack(layer) for layer in made["past_key_values"][1]]
    assert all(torch.equal(*pair) for pair in zip(found, filled, strict=True))
    layers = ("0.0", "0.1", "1.0", "1.1")
    assert made["kv_metadata"] == [None, KvMetadata((2, 6), 10, 15, layers, IDS), None]


def test_a_batch_without_caches() -> None:
    made = given({}).arguments(["x", "y"], np.array([0, 1, 2]))
    assert made == {"past_key_values": [None, None], "kv_metadata": [None, None]}


def test_companions_share_what_was_moved() -> None:
    cache, _ = snapshot()
    other, _ = snapshot()
    caches = given({"a": cache, "b": cache, "c": other})
    offsets = np.arange(4)
    one, same, another = caches.arguments(list("abc"), offsets)["past_key_values"]
    assert one is same
    assert another is not one
    caches.drop("a")
    caches.drop("nobody")
    assert caches.arguments(list("abc"), offsets)["past_key_values"][1] is same


def test_a_request_that_is_gone_is_looked_up_again() -> None:
    caches: dict[str, KvSnapshot] = {}
    caches["a"], _ = snapshot()
    made = given(caches)
    first = made.arguments(["a"], np.arange(2))["past_key_values"][0]
    assert made.arguments(["a"], np.arange(2))["past_key_values"][0] is first  # moved once
    made.drop("a")
    caches["a"], filled = snapshot()
    again = made.arguments(["a"], np.arange(2))["past_key_values"][0]
    assert again is not first
    assert torch.equal(torch.stack(again[0]), filled[0])


def test_blocks_cannot_be_given() -> None:
    cache, _ = snapshot(blocks=True)
    with pytest.raises(PayloadError, match="blocks"):
        given({"a": cache}).arguments(["a"], np.arange(2))
