"""A request's KV cache on its way between stages: what its header says, and who may use it.

Two forms cross. *Blocks* are the engine's own blocks as they lie in its cache: the fast form
between engines of the same model, device and settings; `KvGroup.layout` tells whether two agree.
*Tokens* are keys and values by position, for everybody else. Keys carry their rotary position
either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import torch

from antiphon.errors import PayloadError

MAX_LENGTH = 1 << 24  # tokens


class KvGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Layers whose caches share a block table."""

    layers: tuple[str, ...]  # the engine's names
    num_kv_heads: int
    head_size: int
    block_size: int  # tokens per block of the producer's engine
    layout: str  # fingerprint of how a block stores keys and values


class KvHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a receiver checks before it touches a cache."""

    model: str  # fingerprint of the weights that computed it
    dtype: str
    form: Literal["blocks", "tokens"]
    groups: tuple[KvGroup, ...]
    length: int  # tokens that are cached, at positions first_position, first_position + 1, …
    first_position: int = 0
    salt: str | None = None  # of the producing request's prefix-cache keys

    def check(self) -> None:
        """Raise PayloadError if it describes no cache that can be."""
        if not 0 < self.length <= MAX_LENGTH:
            raise PayloadError(f"The cache has {self.length} tokens; 1 to {MAX_LENGTH} may cross.")
        if not 0 <= self.first_position <= MAX_LENGTH:
            raise PayloadError(f"The cache begins at position {self.first_position}.")
        if not self.groups or not all(group.layers for group in self.groups):
            raise PayloadError("The cache has no layers, or a group without any.")
        names = [name for group in self.groups for name in group.layers]
        if len(set(names)) != len(names):
            raise PayloadError("The cache has two layers of the same name.")
        for group in self.groups:
            for field in ("num_kv_heads", "head_size", "block_size"):
                if (size := getattr(group, field)) < 1:
                    raise PayloadError(f"The cache's {field} is {size}; it must be 1 or more.")

    def check_receiver(self, own: KvHeader) -> None:
        """Raise PayloadError unless an engine that would send `own` can take these blocks in."""
        if self.form != "blocks":
            raise PayloadError("The cache is given by tokens; this stage takes blocks.")
        if self.model != own.model:
            raise PayloadError(
                "The cache was computed with other weights than this stage has; give both stages"
                " the same checkpoint."
            )
        if self.dtype != own.dtype:
            raise PayloadError(f"The cache is {self.dtype}, this stage's is {own.dtype}.")
        if self.first_position != 0:
            raise PayloadError(f"The cache begins at position {self.first_position}, not at 0.")
        if len(self.groups) != len(own.groups):
            raise PayloadError(f"The cache has {len(self.groups)} groups, not {len(own.groups)}.")
        for group, mine in zip(self.groups, own.groups, strict=True):
            for field in KvGroup.__struct_fields__:
                theirs, ours = getattr(group, field), getattr(mine, field)
                if theirs != ours:
                    raise PayloadError(
                        f"The cache's {field} is {theirs!r}, this stage's is {ours!r}."
                    )


@dataclass(frozen=True, slots=True)
class KvSnapshot:
    """A cache as it has arrived, or as it leaves.

    `layers[g][l]` are the pieces, along its first dimension and in order, of the one tensor of
    layer l of group g. Blocks: [num_blocks, elements of a block]. Tokens: [2, length, num_kv_heads,
    head_size], keys and values. What has arrived is in one piece. The tensors may view memory that
    is written again once the snapshot is let go of.
    """

    header: KvHeader
    layers: tuple[tuple[tuple[torch.Tensor, ...], ...], ...]
    token_ids: tuple[int, ...]  # those that are cached, and the one sampled after them if any


KeysValues = tuple[torch.Tensor, torch.Tensor]  # each [length, num_kv_heads, head_size]


@dataclass(frozen=True, slots=True)
class KvMetadata:
    """What a generation model is told of the cache that one of its requests attends to."""

    rows: tuple[int, int]  # the request's token rows of this forward: first, one past the last
    length: int  # positions in the cache
    next_position: int  # that a token behind the cache would have
    layers: tuple[str, ...]  # the producer's names, in the order of `past_key_values`
    token_ids: tuple[int, ...]


def keys_and_values(snapshot: KvSnapshot) -> list[KeysValues]:
    """Keys and values of each layer, in the order of the header. PayloadError for blocks."""
    if snapshot.header.form != "tokens":
        raise PayloadError("The cache is given in blocks, which only the same engine can read.")
    layers: Sequence[tuple[torch.Tensor, ...]] = [
        layer for group in snapshot.layers for layer in group
    ]
    return [(layer[0][0], layer[0][1]) for layer in layers]
