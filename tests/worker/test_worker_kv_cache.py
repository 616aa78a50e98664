"""A request's cache is copied out of an engine and taken in by another, bit by bit the same."""

from __future__ import annotations

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.payload import wire
from antiphon.payload.kv import KvSnapshot, keys_and_values
from antiphon.payload.types import Payload
from antiphon.worker.device import runs
from paged import BACKENDS, Backend, Engine
from two_groups import HERE, IDS, LENGTH, SHAPE, THERE, crossed, engine, sent


def pieces(snapshot: KvSnapshot) -> list[tuple[torch.Tensor, ...]]:
    """By layer, group after group."""
    return [layer for group in snapshot.layers for layer in group]


def equal(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


# --- out and in -----------------------------------------------------------------------------------


@pytest.mark.parametrize("length", range(1, 11))
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_blocks_are_the_same_in_another_engine(backend: Backend, length: int) -> None:
    """Two groups, blocks out of order, into other blocks that held something else."""
    source, target = engine(backend=backend), engine(backend=backend)
    filled = source.fill(HERE, length, seed=1)
    target.fill(THERE, LENGTH, seed=2)
    arrived = crossed(sent(source, length))
    target.caches.check(arrived)
    target.caches.load(arrived, THERE, 0, length)
    assert equal(target.stored(THERE, length), filled)


@settings(deadline=None)
@given(data=st.data())
def test_any_blocks_in_any_order(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 30))
    order = st.permutations(range(1, 12))
    source, target = Engine((SHAPE,), layers=1), Engine((SHAPE,), layers=1)
    here, there = [data.draw(order)], [data.draw(order)]
    filled = source.fill(here, length)
    first = 4 * data.draw(st.integers(0, (length - 1) // 4))
    target.fill(there, first)
    prefix = target.stored(there, first) if first else []
    arrived = crossed(sent(source, length, ids=here))
    target.caches.load(arrived, there, first, length)
    found = target.stored(there, length)
    assert equal([layer[:, first:] for layer in found], [layer[:, first:] for layer in filled])
    assert not first or equal([layer[:, :first] for layer in found], prefix)
    assert equal(source.stored(here, length), filled)


@pytest.mark.parametrize("first", [0, 8])
def test_what_comes_in_pieces_is_loaded_in_order(first: int) -> None:
    """Within one process a cache may be taken in without having crossed."""
    source, target = engine(), engine()
    filled = source.fill(HERE, LENGTH)
    snapshot = sent(source)
    assert len(snapshot.layers[0][0]) == 3
    target.caches.check(snapshot)
    target.caches.load(snapshot, THERE, first, LENGTH)
    found = target.stored(THERE, LENGTH)
    assert equal([layer[:, first:] for layer in found], [layer[:, first:] for layer in filled])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_crosses_bit_by_bit(dtype: torch.dtype) -> None:
    source, target = (Engine((SHAPE,), dtype=dtype) for _ in range(2))
    filled = source.fill(HERE[:1], LENGTH)
    target.caches.load(crossed(sent(source, ids=HERE[:1])), THERE[:1], 0, LENGTH)
    assert equal(target.stored(THERE[:1], LENGTH), filled)


def test_nothing_but_the_requests_blocks_is_written_to() -> None:
    source, target = engine(), engine()
    source.fill(HERE, LENGTH)
    target.caches.load(crossed(sent(source)), THERE, 0, LENGTH)
    for found, ids in zip(target.paged, THERE, strict=True):
        for paged in found:
            others = [i for i in range(12) if i not in ids]
            assert not paged.tensor[others].any()
            assert all(paged.tensor[i].any() for i in ids)


@pytest.mark.parametrize(
    ("first", "stop", "written"),
    [
        (0, 10, (3, 2)),
        (8, 10, (1, 1)),
        (0, 9, (3, 2)),
        (0, 8, (2, 1)),
        (0, 4, (1, 1)),
        (8, 8, (0, 0)),
    ],
)
def test_only_whole_blocks_with_positions_that_are_wanted(
    first: int, stop: int, written: tuple[int, int]
) -> None:
    """What the engine's own prefix cache has is left alone."""
    source, target = engine(), engine()
    source.fill(HERE, LENGTH)
    target.caches.load(crossed(sent(source)), THERE, first, stop)
    for found, ids, count in zip(target.paged, THERE, written, strict=True):
        touched = [bool(found[0].tensor[i].any()) for i in ids]
        start = first // found[0].shape.block_size
        assert touched == [start <= n < start + count for n in range(len(ids))]


def test_what_lies_behind_the_last_token_does_not_matter() -> None:
    """Other requests' leftovers in the last block, before and after the copy."""
    clean, dirty = engine(), engine()
    for source in (clean, dirty):
        source.fill(HERE, LENGTH, seed=1)
    for found, ids in zip(dirty.paged, HERE, strict=True):
        for paged in found:
            shape = paged.shape
            junk = torch.full((2, 2, shape.num_kv_heads, shape.head_size), float("nan"))
            paged.fill(ids, junk, first=LENGTH)
    for blocks in (False, True):
        one, other = (crossed(sent(source, blocks=blocks)) for source in (clean, dirty))
        if not blocks:
            assert equal([p[0] for p in pieces(one)], [p[0] for p in pieces(other)])
            continue
        read = []
        for arrived in (one, other):
            target = engine()
            target.caches.load(arrived, THERE, 0, LENGTH)
            read.append(target.stored(THERE, LENGTH))
        assert equal(*read)


def test_keys_and_values_by_position() -> None:
    source = engine()
    filled = source.fill(HERE, LENGTH)
    arrived = crossed(sent(source, blocks=False))
    assert arrived.header.form == "tokens"
    assert equal([torch.stack(layer) for layer in keys_and_values(arrived)], filled)


def test_the_header_says_what_it_is() -> None:
    source = engine()
    source.fill(HERE, LENGTH)
    own = source.caches.own
    assert (own.model, own.dtype, own.form, own.length) == ("weights", "float32", "blocks", 0)
    assert [(g.layers, g.num_kv_heads, g.head_size, g.block_size) for g in own.groups] == [
        (("0.0", "0.1"), 2, 3, 4),
        (("1.0", "1.1"), 1, 5, 8),
    ]
    for form in ("blocks", "tokens"):
        copy = source.caches.extract(HERE, LENGTH, IDS, "salty", blocks=form == "blocks")
        wanted = msgspec.structs.replace(own, form=form, length=LENGTH, salt="salty")
        assert copy.header == copy.wait().header == wanted
        assert copy.token_ids == IDS


# --- copies ---------------------------------------------------------------------------------------


def _inside(view: torch.Tensor, cache: torch.Tensor) -> bool:
    return view.untyped_storage().data_ptr() == cache.untyped_storage().data_ptr()


def test_full_blocks_are_views_and_the_last_part_is_a_copy() -> None:
    """A request that goes on writes behind the snapshot's last token, into the same block."""
    source = engine()
    filled = source.fill(HERE, LENGTH)
    snapshot = sent(source)
    for group, found in zip(snapshot.layers, source.paged, strict=True):
        for layer, paged in zip(group, found, strict=True):
            *views, last = layer
            assert views
            assert all(_inside(view, paged.tensor) for view in views)
            assert not _inside(last, paged.tensor)
            assert len(last) == 1
    before = [torch.cat(layer) for layer in pieces(snapshot)]
    for found, ids in zip(source.paged, HERE, strict=True):
        for paged in found:
            paged.tensor[ids[-1]] = 7
    assert equal([torch.cat(layer) for layer in pieces(snapshot)], before)
    assert not equal(source.stored(HERE, LENGTH), filled)


@pytest.mark.parametrize(
    ("ids", "rows"),
    [((3, 4, 5, 6), [4]), ((3, 4, 6, 7), [2, 2]), ((6, 5, 4, 3), [1] * 4), ((9, 1, 2, 3), [1, 3])],
)
def test_neighbours_are_one_view(ids: tuple[int, ...], rows: list[int]) -> None:
    source = Engine((SHAPE,))
    source.fill((ids,), 16)
    for layer in pieces(sent(source, 16, ids=(ids,))):
        assert [len(piece) for piece in layer] == rows
        assert all(piece.is_contiguous() for piece in layer)


def test_a_view_is_not_copied_to_be_sent() -> None:
    """The bytes that the connector is given are the cache's own."""
    source = Engine((SHAPE,), layers=1)
    source.fill(((1, 2),), 8)
    payload = Payload({}, cache=sent(source, 8, ids=((1, 2),)), token_ids=tuple(range(100, 109)))
    parts = wire.encode(payload)
    cache = source.paged[0][0].tensor
    cache[1:3] = 5
    (arrived,) = wire.decode(bytearray().join(parts)).cache.layers[0]  # type: ignore[union-attr]
    assert bool((arrived[0] == 5).all())


def test_keys_and_values_by_position_are_copies() -> None:
    source = engine()
    filled = source.fill(HERE, LENGTH)
    snapshot = sent(source, blocks=False)
    for paged in (paged for found in source.paged for paged in found):
        paged.tensor.zero_()
    assert equal([layer[0] for layer in pieces(snapshot)], filled)


def test_blocks_that_do_not_lie_in_one_piece_are_copied() -> None:
    """No backend of the CPU does so; what is sent is right all the same."""
    source = Engine((SHAPE,), backend=BACKENDS[-1])
    source.fill(HERE[:1], LENGTH)
    assert not any(
        _inside(piece, paged.tensor)
        for layer, paged in zip(pieces(sent(source, ids=HERE[:1])), source.paged[0], strict=True)
        for piece in layer
    )


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ([], []),
        ([4], [(4, 5)]),
        ([4, 5, 6], [(4, 7)]),
        ([6, 5], [(6, 7), (5, 6)]),
        ([1, 2, 2, 3], [(1, 3), (2, 4)]),
    ],
)
def test_runs(ids: list[int], found: list[tuple[int, int]]) -> None:
    assert list(runs(ids)) == found
