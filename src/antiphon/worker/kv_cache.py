"""An engine's KV cache as other stages see it: requests' caches are copied out and taken in.

Nothing here knows how the blocks of a request came about; their ids are the scheduler's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import torch

from antiphon.core.kv_handoff import cut_blocks, num_blocks
from antiphon.errors import KVTransferError, PayloadError
from antiphon.payload.kv import KvGroup, KvHeader, KvSnapshot
from antiphon.worker.device import DeviceOps, HostCopy
from antiphon.worker.kv_layout import BlockLayout

BlockIds = Sequence[Sequence[int]]  # by KV group


@dataclass(frozen=True, slots=True)
class GroupCaches:
    """The caches of layers that share a block table."""

    group: KvGroup
    layout: BlockLayout
    blocks: tuple[torch.Tensor, ...]  # of each layer [num_blocks, …]: `BlockLayout.blocks`


@dataclass(frozen=True, slots=True)
class KvCopy:
    """A request's cache on its way to host memory; see `KvCaches.extract`."""

    header: KvHeader
    copies: tuple[tuple[tuple[HostCopy, ...], ...], ...]  # by group and layer, pieces in order
    token_ids: tuple[int, ...]

    def wait(self) -> KvSnapshot:
        """What has been copied. Blocks until it is there. Raises KVTransferError."""
        try:
            layers = tuple(
                tuple(tuple(copy.wait() for copy in pieces) for pieces in group)
                for group in self.copies
            )
        except RuntimeError as error:  # what torch raises for a device that has failed
            raise KVTransferError(f"The cache could not be copied to the host: {error}") from error
        return KvSnapshot(self.header, layers, self.token_ids)


class KvCaches:
    """Owned by the runner and called on its main thread, in the order of its steps.

    `model` is the fingerprint of the weights; `num_blocks` counts the scheduler's blocks, of which
    0 is upstream's null block.
    """

    def __init__(
        self, groups: Sequence[GroupCaches], num_blocks: int, model: str, ops: DeviceOps
    ) -> None:
        self._groups = tuple(groups)
        self._num_blocks = num_blocks
        self._ops = ops
        self.own = KvHeader(
            model=model,
            dtype=str(groups[0].layout.dtype).removeprefix("torch."),
            form="blocks",
            groups=tuple(group.group for group in groups),
            length=0,
        )

    def check(self, snapshot: KvSnapshot) -> None:
        """Raise PayloadError unless `load` can take it in. Touches nothing."""
        header = snapshot.header
        header.check_receiver(self.own)
        if len(snapshot.token_ids) < header.length:
            raise PayloadError(
                f"The cache has {header.length} tokens, but only {len(snapshot.token_ids)} ids."
            )
        for caches, layers in zip(self._groups, snapshot.layers, strict=True):
            size = caches.layout.shape.elements
            wanted = num_blocks(header.length, caches.group.block_size)
            for pieces in layers:
                rows = sum(len(piece) for piece in pieces)
                kinds = {(piece.dtype, *piece.shape[1:]) for piece in pieces}
                if rows != wanted or kinds != {(caches.layout.dtype, size)}:
                    raise PayloadError(
                        f"The cache's layers do not have {wanted} blocks of {size} numbers."
                    )

    def extract(
        self,
        block_ids: BlockIds,
        length: int,
        token_ids: tuple[int, ...],
        salt: str | None,
        *,
        blocks: bool,
    ) -> KvCopy:
        """Start copying the cache of a request's first `length` tokens to the host.

        As blocks, what is copied may view all but a last, partly filled one, which the request may
        go on to write to: nobody else may write to them until the copy has been let go of.
        Otherwise keys and values are unpacked by position. Raises KVTransferError for blocks that
        are not there, and if memory runs out.
        """
        header = msgspec.structs.replace(
            self.own, form="blocks" if blocks else "tokens", length=length, salt=salt
        )
        cut = self._cut(block_ids, length)
        read = self._read if blocks else self._unpack
        try:
            copies = tuple(
                read(group, ids, length) for group, ids in zip(self._groups, cut, strict=True)
            )
        except RuntimeError as error:  # of torch's, for memory that runs out among others
            raise KVTransferError(f"The cache could not be copied: {error}") from error
        return KvCopy(header, copies, token_ids)

    def load(self, snapshot: KvSnapshot, block_ids: BlockIds, first: int, stop: int) -> None:
        """Copy the blocks that hold positions [first, stop) from `snapshot` to those of a request.

        `block_ids` are all of the request's. The snapshot has been checked (`check`) and may
        be let go of at once. Raises ValueError if `first` is not the beginning of a block or there
        are not as many positions, KVTransferError for blocks that are not there.
        """
        if not 0 <= first <= stop <= snapshot.header.length:
            raise ValueError(f"positions {first} to {stop} of {snapshot.header.length}")
        cut = self._cut(block_ids, stop)
        for group, ids, layers in zip(self._groups, cut, snapshot.layers, strict=True):
            start, rest = divmod(first, group.group.block_size)
            if rest:
                raise ValueError(f"position {first} is inside a block of {group.group.block_size}")
            if start == len(ids):
                continue
            for blocks, pieces in zip(group.blocks, layers, strict=True):
                self._ops.write_blocks(blocks, ids[start:], _rows(pieces, start, len(ids)))

    def _cut(self, block_ids: BlockIds, length: int) -> tuple[tuple[int, ...], ...]:
        """The blocks of the first `length` tokens. A wrong id would hand on another's cache."""
        try:
            sizes = [group.group.block_size for group in self._groups]
            cut = cut_blocks(block_ids, sizes, length)
        except ValueError as error:
            raise KVTransferError(f"The cache's blocks are not all there: {error}.") from error
        strange = [i for ids in cut for i in ids if not 0 < i < self._num_blocks]
        if strange:
            raise KVTransferError(f"There are no cache blocks {strange}.")
        return cut

    def _read(
        self, group: GroupCaches, ids: Sequence[int], length: int
    ) -> tuple[tuple[HostCopy, ...], ...]:
        full = length // group.group.block_size
        return tuple(
            tuple(self._ops.read_blocks(blocks, ids, settled=full)) for blocks in group.blocks
        )

    def _unpack(
        self, group: GroupCaches, ids: Sequence[int], length: int
    ) -> tuple[tuple[HostCopy, ...], ...]:
        found = (self._ops.take_blocks(blocks, ids) for blocks in group.blocks)
        unpacked = (group.layout.unpack(pieces, length) for pieces in found)
        return tuple((self._ops.to_host(tensor),) for tensor in unpacked)


def _rows(pieces: Sequence[torch.Tensor], start: int, stop: int) -> list[torch.Tensor]:
    """Rows [start, stop) of the tensor that these are the pieces of."""
    found = []
    for piece in pieces:
        if start < len(piece) and stop > 0:
            found.append(piece[max(start, 0) : stop])
        start -= len(piece)
        stop -= len(piece)
    return found
