"""How an attention backend stores keys and values in a block, found out instead of assumed.

It differs between platforms and instruction sets: vLLM's CPU kernels keep the keys of a block
transposed or packed for matrix instructions, GPU backends keep the heads inside or outside the
tokens. So known keys and values are written by the backend itself, and its memory is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from antiphon.errors import DeploymentError

Write = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
"""Stores keys and values [num_tokens, num_kv_heads, head_size] in the slots [num_tokens]."""


_DIGIT = 128  # base of the marks: 1 to 128 are exact in every dtype of a cache


@dataclass(frozen=True, slots=True)
class BlockShape:
    """What a block of one layer holds."""

    block_size: int  # tokens
    num_kv_heads: int
    head_size: int

    @property
    def elements(self) -> int:
        """Of the block: keys and values."""
        return 2 * self.half

    @property
    def half(self) -> int:
        """Of its keys, or of its values."""
        return self.block_size * self.num_kv_heads * self.head_size


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Where in a block each key and value lies; equal for equal fingerprints."""

    shape: BlockShape
    dtype: torch.dtype
    block_dim: int  # the cache's dimension that counts blocks, or the parts that kernels see
    order: torch.Tensor  # int64 [elements]: place of each of [2, token, head, dim] in the block

    @property
    def fingerprint(self) -> str:
        """Of what a block's bytes mean."""
        digest = hashlib.blake2b(self.order.numpy().tobytes(), digest_size=16)
        digest.update(repr((self.shape, str(self.dtype))).encode())
        return digest.hexdigest()

    def blocks(self, cache: torch.Tensor, num_blocks: int) -> torch.Tensor:
        """The cache by the scheduler's blocks: [num_blocks, …], a view."""
        return _by_block(cache, self.block_dim, num_blocks)

    def unpack(self, pieces: Sequence[torch.Tensor], length: int) -> torch.Tensor:
        """Keys and values [2, length, num_kv_heads, head_size], of blocks [n, elements] in order.

        Always a copy, on the pieces' device.
        """
        shape = self.shape
        order = self.order.to(pieces[0].device).view(2, -1)
        token = shape.num_kv_heads * shape.head_size  # elements of a token's keys
        made = pieces[0].new_empty(2, length * token)
        for half, places in zip(made, order, strict=True):
            done = 0
            for piece in pieces:
                full = min(len(piece), (length - done) // shape.block_size)
                end = (done + full * shape.block_size) * token
                whole = half[done * token : end].view(full, shape.half)
                torch.index_select(piece[:full], 1, places, out=whole)
                done += full * shape.block_size
                if full < len(piece) and (rest := (length - done) * token):
                    part = half[end : end + rest].view(1, rest)
                    torch.index_select(piece[full : full + 1], 1, places[:rest], out=part)
        return made.view(2, length, shape.num_kv_heads, shape.head_size)


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's cache, which nobody uses yet and which is zero."""

    name: str
    tensor: torch.Tensor
    num_blocks: int  # the scheduler's
    write: Write
    dtype: torch.dtype  # of the keys and values that the model computes

    def holds(self, shape: BlockShape) -> bool:
        """Whether there is room for keys and values, and for nothing else."""
        return self.tensor.numel() == self.num_blocks * shape.elements

    def block(self, dim: int) -> torch.Tensor:
        """The last block, where dimension `dim` counts blocks."""
        return _by_block(self.tensor, dim, self.num_blocks)[self.num_blocks - 1]

    def store(self, numbers: torch.Tensor) -> None:
        """Have keys and values [2, token, head, dim] written to the last block."""
        keys, values = numbers.to(self.tensor.device, self.dtype).unbind(0)
        first = (self.num_blocks - 1) * len(keys)
        self.write(keys, values, torch.arange(first, first + len(keys), device=keys.device))


def probe_layout(layer: LayerCache, shape: BlockShape) -> BlockLayout:
    """Find out the layout of a layer's cache. Its last block is written to, and zeroed again.

    Raises DeploymentError if a block holds anything but its own keys and values.
    """
    ids = torch.arange(shape.elements)
    marks = ids.view(2, shape.block_size, shape.num_kv_heads, shape.head_size)
    # Which mark lies at each place, if this dimension counts blocks.
    where = {dim: torch.zeros_like(ids) for dim in _dims(layer, shape)}
    scale = 1
    while where and scale < shape.elements:
        layer.store(marks // scale % _DIGIT + 1)
        for dim, found in where.items():
            digits = layer.block(dim).flatten().to("cpu", torch.int64) - 1
            found.add_(digits, alpha=scale)
        scale *= _DIGIT
    for dim, found in where.items():
        order = found.argsort()
        if torch.equal(found[order], ids):
            layer.block(dim).zero_()
            return BlockLayout(shape, layer.tensor.dtype, dim, order)
    raise DeploymentError(
        f"The cache of layer '{layer.name}', {list(layer.tensor.shape)}, does not store a key and a"
        f" value for each of {shape.block_size} tokens, {shape.num_kv_heads} heads and"
        f" {shape.head_size} dimensions per block, so it cannot be handed to another stage; choose"
        f" another attention backend, or take the kv edge out."
    )


def check_layout(layer: LayerCache, layout: BlockLayout) -> bool:
    """Whether this layer's cache has the layout too; its last block is zeroed afterwards."""
    shape = layout.shape
    if not layer.holds(shape) or layer.tensor.dtype != layout.dtype:
        return False
    drawn = torch.randint(1, _DIGIT, (shape.elements,), generator=torch.Generator().manual_seed(0))
    wanted = drawn.view(2, shape.block_size, shape.num_kv_heads, shape.head_size)
    layer.store(wanted)
    block = layer.block(layout.block_dim)
    found = layout.unpack([block.reshape(1, -1)], shape.block_size)
    block.zero_()
    return torch.equal(found.to("cpu", torch.int64), wanted)


def _dims(layer: LayerCache, shape: BlockShape) -> list[int]:
    """Dimensions that may count blocks. Kernels may see each block as several smaller ones."""
    if not layer.holds(shape):
        return []
    return [dim for dim, size in enumerate(layer.tensor.shape) if size % layer.num_blocks == 0]


def _by_block(cache: torch.Tensor, dim: int, num_blocks: int) -> torch.Tensor:
    """[num_blocks, …], a view: what belongs to a block behind it."""
    parts = cache.movedim(dim, 0)
    return parts.view(num_blocks, parts.shape[0] // num_blocks, *parts.shape[1:])
