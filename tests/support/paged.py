"""Caches on plain tensors, stored in the ways that attention backends store them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from antiphon.payload.kv import KvGroup
from antiphon.worker.device import CpuOps
from antiphon.worker.kv_cache import GroupCaches, KvCaches
from antiphon.worker.kv_layout import BlockShape, LayerCache, probe_layout

Put = Callable[[torch.Tensor, int, int, torch.Tensor, torch.Tensor], None]
"""Writes a token's key and value [heads, head size] at (cache, block, offset in it)."""


@dataclass(frozen=True)
class Backend:
    """`dims` of its cache, of the sizes (blocks, heads, tokens, head size), and how it writes."""

    name: str
    dims: Callable[[int, int, int, int], torch.Tensor]
    put: Put

    def __str__(self) -> str:
        return self.name


def _put_joined(cache: torch.Tensor, block: int, at: int, k: torch.Tensor, v: torch.Tensor) -> None:
    cache[block, :, at] = torch.cat([k, v], -1)


def _put_inner(cache: torch.Tensor, block: int, at: int, k: torch.Tensor, v: torch.Tensor) -> None:
    cache[block, at] = torch.cat([k, v], -1)


def _put_apart(cache: torch.Tensor, block: int, at: int, k: torch.Tensor, v: torch.Tensor) -> None:
    cache[:, block, at] = torch.stack([k, v])


def _put_turned(cache: torch.Tensor, block: int, at: int, k: torch.Tensor, v: torch.Tensor) -> None:
    """As vLLM's CPU kernels: of each head the keys of all tokens by dimension, then the values."""
    heads, tokens, width = cache.shape[1], cache.shape[2], cache.shape[3] // 2
    halves = cache[block].view(heads, 2, -1)
    halves[:, 0].view(heads, width, tokens)[:, :, at] = k
    halves[:, 1].view(heads, tokens, width)[:, at] = v


def _put_paired(cache: torch.Tensor, block: int, at: int, k: torch.Tensor, v: torch.Tensor) -> None:
    """As for matrix instructions of bfloat16: two tokens side by side."""
    heads, tokens, width = cache.shape[1], cache.shape[2], cache.shape[3] // 2
    pairs = cache[block].view(2, heads, tokens // 2, width, 2)
    pairs[:, :, at // 2, :, at % 2] = torch.stack([k, v])


BACKENDS = (
    Backend("heads outside", lambda b, h, n, d: torch.zeros(b, h, n, 2 * d), _put_joined),
    Backend(
        "heads inside",
        lambda b, h, n, d: torch.zeros(b, n, h, 2 * d).transpose(1, 2),
        _put_joined,
    ),
    Backend("tokens outside", lambda b, h, n, d: torch.zeros(b, n, h, 2 * d), _put_inner),
    Backend("apart", lambda b, h, n, d: torch.zeros(2, b, n, h, d), _put_apart),
    Backend("turned", lambda b, h, n, d: torch.zeros(b, h, n, 2 * d), _put_turned),
    Backend("paired", lambda b, h, n, d: torch.zeros(b, h, n, 2 * d), _put_paired),
    Backend(
        "blocks inside",
        lambda b, h, n, d: torch.zeros(h, b, n, 2 * d).transpose(0, 1),
        _put_joined,
    ),
)
TURNED = BACKENDS[4]


class Paged:
    """One layer's cache. `parts`: what a kernel sees as so many smaller blocks."""

    def __init__(
        self,
        shape: BlockShape,
        num_blocks: int,
        backend: Backend = TURNED,
        dtype: torch.dtype = torch.float32,
        *,
        parts: int = 1,
    ) -> None:
        self.shape = shape
        self.num_blocks = num_blocks
        self._kernel_size = shape.block_size // parts
        sizes = (num_blocks * parts, shape.num_kv_heads, self._kernel_size, shape.head_size)
        self.tensor = backend.dims(*sizes).to(dtype)
        self._put = backend.put

    def write(self, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        for key, value, slot in zip(keys, values, slots.tolist(), strict=True):
            self._put(self.tensor, *divmod(slot, self._kernel_size), key, value)

    def layer(self, name: str = "layer", dtype: torch.dtype | None = None) -> LayerCache:
        given = self.tensor.dtype if dtype is None else dtype
        return LayerCache(name, self.tensor, self.num_blocks, self.write, given)

    def fill(self, ids: Sequence[int], tokens: torch.Tensor, first: int = 0) -> None:
        """Store keys and values [2, n, heads, head size] at positions from `first` on."""
        size = self.shape.block_size
        places = range(first, first + tokens.shape[1])
        slots = torch.tensor([ids[place // size] * size + place % size for place in places])
        self.write(tokens[0], tokens[1], slots)


def drawn(shape: BlockShape, length: int, seed: int = 0) -> torch.Tensor:
    """Keys and values [2, length, heads, head size]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, length, shape.num_kv_heads, shape.head_size, generator=generator)


class Engine:
    """The caches of an engine with one layer, or some, in each of several groups."""

    def __init__(
        self,
        shapes: Sequence[BlockShape],
        num_blocks: int = 12,
        *,
        layers: int = 2,
        backend: Backend = TURNED,
        dtype: torch.dtype = torch.float32,
        model: str = "weights",
    ) -> None:
        self.shapes = tuple(shapes)
        self.paged = [
            [Paged(shape, num_blocks, backend, dtype) for _ in range(layers)] for shape in shapes
        ]
        groups = []
        for index, (shape, found) in enumerate(zip(shapes, self.paged, strict=True)):
            layout = probe_layout(found[0].layer(), shape)
            names = tuple(f"{index}.{layer}" for layer in range(layers))
            group = KvGroup(
                names, shape.num_kv_heads, shape.head_size, shape.block_size, layout.fingerprint
            )
            blocks = tuple(layout.blocks(paged.tensor, num_blocks) for paged in found)
            groups.append(GroupCaches(group, layout, blocks))
        self.caches = KvCaches(groups, num_blocks, model, CpuOps())

    def fill(self, ids: Sequence[Sequence[int]], length: int, seed: int = 0) -> list[torch.Tensor]:
        """Draw a request's keys and values and store them; by layer, group after group."""
        filled = []
        for group, (found, shape) in enumerate(zip(self.paged, self.shapes, strict=True)):
            for index, paged in enumerate(found):
                tokens = drawn(shape, length, seed + 100 * group + index)
                paged.fill(ids[group], tokens.to(paged.tensor.dtype))
                filled.append(tokens.to(paged.tensor.dtype))
        return filled

    def stored(self, ids: Sequence[Sequence[int]], length: int) -> list[torch.Tensor]:
        """What lies there, as `fill` gives it; read by position."""
        token_ids = tuple(range(length))
        copy = self.caches.extract(ids, length, token_ids, None, blocks=False)
        return [layer[0] for group in copy.wait().layers for layer in group]
