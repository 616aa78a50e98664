"""KV caches to send, and what must arrive of them."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from hypothesis import strategies as st

from antiphon.payload.kv import KvGroup, KvHeader, KvSnapshot
from antiphon.payload.types import Payload, per_token
from antiphon.payload.wire import ALIGNMENT, DTYPES, encode

PREFIX = struct.Struct("<4sHHQIII")
LENGTH = 10
IDS = tuple(range(100, 100 + LENGTH + 1))
# Blocks of 10 tokens: three of 4, and two of 8.
GROUPS = (KvGroup(("l0", "l1"), 2, 3, 4, "HND"), KvGroup(("l2",), 1, 5, 8, "NHD"))
ELEMENTS = (48, 80)
BLOCKS = KvHeader("weights", "float32", "blocks", GROUPS, LENGTH)
TOKENS = KvHeader("weights", "float32", "tokens", GROUPS, LENGTH, first_position=7, salt="s")

replace = msgspec.structs.replace


def whole(header: KvHeader, elements: Sequence[int] = ELEMENTS) -> list[list[torch.Tensor]]:
    """One tensor per group and layer, in which no two rows are alike."""
    layers: list[list[torch.Tensor]] = []
    for group, size in zip(header.groups, elements, strict=True):
        shape: tuple[int, ...] = (-(-header.length // group.block_size), size)
        if header.form == "tokens":
            shape = (2, header.length, group.num_kv_heads, group.head_size)
        count = math.prod(shape)
        layers.append(
            [
                (torch.arange(count) + 1000 * index).reshape(shape).to(DTYPES[header.dtype])
                for index, _ in enumerate(group.layers, start=10 * len(layers))
            ]
        )
    return layers


def snapshot(
    header: KvHeader = BLOCKS,
    layers: Sequence[Sequence[Any]] | None = None,
    token_ids: tuple[int, ...] = IDS,
) -> KvSnapshot:
    """Each layer in one piece, or in those of `layers`."""
    layers = whole(header) if layers is None else layers
    pieces = tuple(
        tuple(layer if isinstance(layer, tuple) else (layer,) for layer in group)
        for group in layers
    )
    return KvSnapshot(header, pieces, token_ids)


def sample(cache: KvSnapshot | None = None) -> Payload:
    """A cache and one ordinary field."""
    cache = snapshot() if cache is None else cache
    rows = per_token(torch.arange(6, dtype=torch.float16).reshape(2, 3))
    return Payload({"rows": rows}, {"voice": "alto"}, cache, cache.token_ids)


def wire(payload: Payload, **how: Any) -> bytearray:
    return bytearray().join(encode(payload, **how))


def assert_same(got: Payload, sent: Payload) -> None:
    assert got.specs() == sent.specs()
    assert dict(got.meta) == dict(sent.meta)
    assert got.token_ids == sent.token_ids
    assert got.fields.keys() == sent.fields.keys()
    for name, field in sent.fields.items():
        assert torch.equal(got.fields[name].tensor, field.tensor)
    assert (got.cache is None) == (sent.cache is None)
    if got.cache is None or sent.cache is None:
        return
    assert got.cache.header == sent.cache.header
    assert got.cache.token_ids == sent.cache.token_ids
    for arrived, left in zip(got.cache.layers, sent.cache.layers, strict=True):
        for (one,), pieces in zip(arrived, left, strict=True):
            assert one.dtype is pieces[0].dtype
            # Compared as bytes: a NaN equals itself here.
            assert torch.equal(one.view(torch.uint8), torch.cat(pieces).view(torch.uint8))


@st.composite
def snapshots(draw: st.DrawFn) -> KvSnapshot:
    """Any form, dtype, groups and length; each layer cut into pieces at random."""
    small = st.integers(1, 3)
    length = draw(st.integers(1, 40))
    form = draw(st.sampled_from(["blocks", "tokens"]))
    dtype = draw(st.sampled_from(["float32", "bfloat16", "float16", "uint8"]))
    groups, layers = [], []
    for index in range(draw(small)):
        names = tuple(f"{index}.{n}" for n in range(draw(small)))
        block = draw(st.sampled_from([1, 4, 16]))
        group = KvGroup(names, draw(small), draw(small), block, draw(st.text(max_size=4)))
        shape: tuple[int, ...] = (2, length, group.num_kv_heads, group.head_size)
        if form == "blocks":
            shape = (-(-length // block), draw(st.integers(1, 9)))
        groups.append(group)
        layers.append([draw(_pieces(shape, DTYPES[dtype])) for _ in names])
    header = KvHeader("w", dtype, form, tuple(groups), length, draw(st.integers(0, 99)))
    ids = draw(st.lists(st.integers(0, 2**31 - 1), min_size=length, max_size=length + 1))
    return snapshot(header, layers, tuple(ids))


@st.composite
def _pieces(draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    count = math.prod(shape) * dtype.itemsize
    seeded = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    raw = torch.randint(256, (count,), dtype=torch.uint8, generator=seeded)
    tensor = raw.view(dtype).reshape(shape)
    cuts = sorted(draw(st.lists(st.integers(0, shape[0]), max_size=3)))
    pieces = torch.tensor_split(tensor, cuts)
    scattered = draw(st.booleans())
    return tuple(_strided(piece) if scattered else piece for piece in pieces)


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with gaps between them."""
    wide = torch.zeros(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype)
    wide[..., ::2] = tensor
    return wide[..., ::2]


def body_at(blob: bytearray, spec: int, payload: Payload) -> int:
    """Offset of the first byte of a field's body."""
    (header_len,) = struct.unpack_from("<I", blob, 16)
    at = aligned(PREFIX.size + header_len)
    for other in payload.specs()[:spec]:
        at = aligned(at + math.prod(other.shape) * DTYPES[other.dtype].itemsize)
    return at


def aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
