"""What cannot be copied out, or taken in, is refused before a cache is touched."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from antiphon.errors import KVTransferError, PayloadError
from antiphon.payload.kv import KvHeader, KvSnapshot
from paged import BACKENDS, TURNED, Backend
from two_groups import IDS, LENGTH, crossed, engine, sent


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        (((7, 2, 12), (5, 1)), "no cache blocks [12]"),
        (((7, 0, 3), (5, 1)), "no cache blocks [0]"),
        (((7, 2, 3), (5, -1)), "no cache blocks [-1]"),
        (((7, 2), (5, 1)), "10 tokens need 3 blocks of 4, there are 2"),
        (((7, 2, 3),), "not all there"),
    ],
)
@pytest.mark.parametrize("blocks", [True, False])
def test_blocks_that_are_not_there_are_refused(ids: Any, why: str, blocks: bool) -> None:
    """Rather than left out, which would shift all that follows."""
    source = engine()
    with pytest.raises(KVTransferError) as raised:
        source.caches.extract(ids, LENGTH, IDS, None, blocks=blocks)
    assert why in str(raised.value)
    arrived = crossed(sent(source))
    with pytest.raises(KVTransferError):
        source.caches.load(arrived, ids, 0, LENGTH)
    assert not any(paged.tensor.any() for found in source.paged for paged in found)


@pytest.mark.parametrize(("first", "stop"), [(1, 10), (4, 10), (-4, 4), (8, 4), (0, 11)])
def test_loads_of_positions_that_cannot_be_are_refused(first: int, stop: int) -> None:
    """4 is the beginning of a block in one group alone."""
    target = engine()
    arrived = crossed(sent(engine()))
    with pytest.raises(ValueError, match="position"):
        target.caches.load(arrived, ((1, 9, 4, 5), (6, 2)), first, stop)


REFUSED: dict[str, dict[str, Any]] = {
    "form": {"form": "tokens"},
    "weights": {"model": "others"},
    "dtype": {"dtype": "float16"},
    "position": {"first_position": 1},
    "groups": {"groups": ()},
}


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
def test_a_cache_of_another_engine_is_refused(change: dict[str, Any]) -> None:
    source = engine()
    arrived = crossed(sent(source))
    other = msgspec.structs.replace(arrived.header, **change)
    with pytest.raises(PayloadError):
        source.caches.check(KvSnapshot(other, arrived.layers, IDS))
    source.caches.check(arrived)


@pytest.mark.parametrize("other", [b for b in BACKENDS if b is not TURNED], ids=str)
def test_a_cache_that_is_stored_otherwise_is_refused(other: Backend) -> None:
    with pytest.raises(PayloadError, match="layout"):
        engine().caches.check(crossed(sent(engine(backend=other))))


def test_other_weights_are_refused() -> None:
    with pytest.raises(PayloadError, match="other weights"):
        engine(model="others").caches.check(crossed(sent(engine())))


def _without_a_block(layer: torch.Tensor) -> torch.Tensor:
    return layer[1:]


def _narrow(layer: torch.Tensor) -> torch.Tensor:
    return layer[:, 1:]


def _half(layer: torch.Tensor) -> torch.Tensor:
    return layer.half()


@pytest.mark.parametrize("change", [_without_a_block, _narrow, _half])
def test_layers_that_are_not_what_the_header_says_are_refused(change: Any) -> None:
    """One of them is enough."""
    arrived = crossed(sent(engine()))
    first, (layer, other) = arrived.layers
    layers = (first, (layer, (change(other[0]),)))
    with pytest.raises(PayloadError, match="do not have"):
        engine().caches.check(KvSnapshot(arrived.header, layers, IDS))


def test_too_few_token_ids_are_refused() -> None:
    arrived = crossed(sent(engine()))
    with pytest.raises(PayloadError, match="only 9 ids"):
        engine().caches.check(KvSnapshot(arrived.header, arrived.layers, IDS[:9]))


def test_an_engine_takes_its_own_header() -> None:
    """Length, salt and form aside, what it sends is what it takes."""
    header = msgspec.structs.replace(engine().caches.own, length=3, salt="s")
    assert isinstance(header, KvHeader)
    header.check_receiver(engine().caches.own)
