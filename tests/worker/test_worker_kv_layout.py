"""How a block stores keys and values is found out by writing, whatever the backend does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from antiphon.errors import DeploymentError
from antiphon.worker.kv_layout import BlockLayout, BlockShape, check_layout, probe_layout
from paged import BACKENDS, TURNED, Backend, Paged, drawn

SHAPE = BlockShape(8, 3, 5)  # 240 elements: two digits of the marks
LARGE = BlockShape(32, 4, 96)  # 24,576: three
NUM_BLOCKS = 7
ORDERS = ([1, 2, 3, 4, 5], [5, 3, 1, 4, 2])
PIECES = ((5,), (2, 3), (1, 1, 1, 1, 1))


def probed(backend: Backend, shape: BlockShape = SHAPE, **how: object) -> tuple[Paged, BlockLayout]:
    paged = Paged(shape, NUM_BLOCKS, backend, **how)  # type: ignore[arg-type]
    return paged, probe_layout(paged.layer(), shape)


def read(paged: Paged, layout: BlockLayout, ids: list[int], length: int) -> torch.Tensor:
    """What is stored in these blocks, one piece for each."""
    blocks = layout.blocks(paged.tensor, NUM_BLOCKS)
    return layout.unpack([blocks[i : i + 1].flatten(1) for i in ids], length)


@pytest.mark.parametrize("ids", ORDERS, ids=["in order", "out of order"])
@pytest.mark.parametrize("length", [1, 7, 8, 9, 32, 39, 40])
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_what_a_backend_writes_is_read_by_position(
    backend: Backend, length: int, ids: list[int]
) -> None:
    """Whole and partial blocks, in any order."""
    paged, layout = probed(backend)
    tokens = drawn(SHAPE, length)
    paged.fill(ids, tokens)
    needed = ids[: -(-length // 8)]
    assert torch.equal(read(paged, layout, needed, length), tokens)


@pytest.mark.parametrize("sizes", PIECES, ids=str)
@pytest.mark.parametrize("length", [33, 40])
def test_blocks_may_come_in_pieces(sizes: tuple[int, ...], length: int) -> None:
    paged, layout = probed(TURNED)
    tokens = drawn(SHAPE, length)
    paged.fill([1, 2, 3, 4, 5], tokens)
    pieces = layout.blocks(paged.tensor, NUM_BLOCKS)[1:6].flatten(1).split(list(sizes))
    assert torch.equal(layout.unpack(pieces, length), tokens)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("parts", [2, 4])
def test_kernels_may_see_several_small_blocks_in_each(backend: Backend, parts: int) -> None:
    paged, layout = probed(backend, parts=parts)
    tokens = drawn(SHAPE, 21)
    paged.fill([4, 2, 6], tokens)
    assert torch.equal(read(paged, layout, [4, 2, 6], 21), tokens)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("backend", [TURNED, BACKENDS[5]], ids=str)
def test_large_blocks_of_every_dtype(backend: Backend, dtype: torch.dtype) -> None:
    """The marks are exact in eight bits of mantissa."""
    paged, layout = probed(backend, LARGE, dtype=dtype)
    assert sorted(layout.order.tolist()) == list(range(LARGE.elements))
    tokens = drawn(LARGE, 70).to(dtype)
    paged.fill([3, 1, 2], tokens)
    assert torch.equal(read(paged, layout, [3, 1, 2], 70), tokens)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_the_dimension_that_counts_blocks(backend: Backend) -> None:
    _, layout = probed(backend)
    assert layout.block_dim == (1 if backend.name == "apart" else 0)


def test_dimensions_of_the_same_size_are_told_apart() -> None:
    """As many blocks as heads, tokens and dimensions: only the writes tell."""
    shape = BlockShape(4, 4, 4)
    for backend in BACKENDS:
        paged = Paged(shape, 4, backend)
        layout = probe_layout(paged.layer(), shape)
        tokens = drawn(shape, 7)
        paged.fill([2, 1], tokens)
        blocks = layout.blocks(paged.tensor, 4)
        found = layout.unpack([blocks[i : i + 1].flatten(1) for i in (2, 1)], 7)
        assert torch.equal(found, tokens), backend


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_a_probe_leaves_nothing_behind(backend: Backend) -> None:
    paged, layout = probed(backend)
    assert check_layout(paged.layer(), layout)
    assert not paged.tensor.any()


def test_only_the_last_block_is_written_to() -> None:
    """Block 0 is upstream's null block."""
    paged = Paged(SHAPE, NUM_BLOCKS)
    blocks = set()

    def write(keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        blocks.update(slot // SHAPE.block_size for slot in slots.tolist())
        paged.write(keys, values, slots)

    layer = replace(paged.layer(), write=write)
    assert check_layout(layer, probe_layout(layer, SHAPE))
    assert blocks == {NUM_BLOCKS - 1}


# --- fingerprints ---------------------------------------------------------------------------------


def test_a_fingerprint_says_what_the_bytes_of_a_block_mean() -> None:
    """Not where blocks lie: the strides of "heads inside" and "blocks inside" stay at home."""
    prints = {backend.name: probed(backend)[1].fingerprint for backend in BACKENDS}
    assert prints == {b.name: probed(b)[1].fingerprint for b in BACKENDS}
    same = {prints[name] for name in ("heads outside", "heads inside", "blocks inside")}
    assert len(same) == 1
    assert len(set(prints.values())) == len(BACKENDS) - 2


def test_blocks_of_another_size_or_dtype_have_another_fingerprint() -> None:
    shapes = (SHAPE, BlockShape(8, 5, 3), BlockShape(24, 1, 5), BlockShape(16, 3, 5))
    prints = [probed(TURNED, shape)[1].fingerprint for shape in shapes]
    prints.append(probed(TURNED, dtype=torch.bfloat16)[1].fingerprint)
    assert len(set(prints)) == len(prints)


# --- what does not fit ----------------------------------------------------------------------------


def test_a_wrong_order_reads_something_else() -> None:
    """The comparisons above can fail: two places exchanged are enough."""
    paged, layout = probed(TURNED)
    order = layout.order.clone()
    order[[0, 1]] = order[[1, 0]]
    wrong = replace(layout, order=order)
    tokens = drawn(SHAPE, 9)
    paged.fill([2, 1], tokens)
    assert not torch.equal(read(paged, wrong, [2, 1], 9), tokens)
    assert wrong.fingerprint != layout.fingerprint
    paged.tensor.zero_()
    assert not check_layout(paged.layer(), wrong)
    assert check_layout(paged.layer(), layout)


@pytest.mark.parametrize("other", [b for b in BACKENDS if b is not TURNED], ids=str)
def test_a_layer_that_stores_otherwise_is_noticed(other: Backend) -> None:
    _, layout = probed(TURNED)
    if other.name != "apart":  # its blocks are counted by another dimension
        assert not check_layout(Paged(SHAPE, NUM_BLOCKS, other).layer(), layout)
    half = Paged(SHAPE, NUM_BLOCKS, TURNED, torch.float16)
    assert not check_layout(half.layer(dtype=torch.float32), layout)
    assert not check_layout(Paged(SHAPE, NUM_BLOCKS + 1).layer(), replace(layout, shape=LARGE))


def _lossy(keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return keys, keys


def _rounded(keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return keys // 2 * 2, values


def _nothing(keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros_like(keys), torch.zeros_like(values)


@pytest.mark.parametrize("change", [_lossy, _rounded, _nothing])
def test_a_cache_that_does_not_keep_what_it_is_given_is_refused(change: object) -> None:
    paged = Paged(SHAPE, NUM_BLOCKS)

    def write(keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        paged.write(*change(keys, values), slots)  # type: ignore[operator]

    with pytest.raises(DeploymentError, match=r"layer\.7.*take the kv edge out"):
        probe_layout(replace(paged.layer("layer.7"), write=write), SHAPE)


def test_a_cache_that_writes_to_another_block_is_refused() -> None:
    paged = Paged(SHAPE, NUM_BLOCKS)

    def write(keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        paged.write(keys, values, slots - SHAPE.block_size)

    with pytest.raises(DeploymentError):
        probe_layout(replace(paged.layer(), write=write), SHAPE)


def test_a_cache_with_room_for_something_else_is_refused() -> None:
    """Scales of a quantization, or a padding."""
    paged = Paged(BlockShape(8, 3, 6), NUM_BLOCKS)
    with pytest.raises(DeploymentError, match=r"\[7, 3, 8, 12\]"):
        probe_layout(paged.layer(), SHAPE)
