"""References of our own to blocks of upstream's KV cache, beside those of the requests.

Upstream gives a block to somebody else only when nobody refers to it any more. So what is held here
keeps its content, whatever becomes of the request that computed it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.scheduler import Scheduler

from antiphon.core.kv_handoff import cut_blocks

Blocks = tuple[tuple[KVCacheBlock, ...], ...]  # by KV group


class BlockHolds:
    """Takes and lets go of such references. Which are held is its callers' knowledge."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def take(self, uid: str, length: int) -> Blocks:
        """Hold the blocks of a request's first `length` tokens, of every KV group.

        Blocks that a sliding window has dropped are upstream's null block. Raises ValueError if
        the request has fewer blocks; then none is held.
        """
        manager, config = self._scheduler.kv_cache_manager, self._scheduler.kv_cache_config
        groups = manager.get_blocks(uid).blocks
        sizes = [group.kv_cache_spec.block_size for group in config.kv_cache_groups]
        needed = cut_blocks([[block.block_id for block in g] for g in groups], sizes, length)
        held = tuple(tuple(g[: len(ids)]) for g, ids in zip(groups, needed, strict=True))
        for group in held:
            manager.block_pool.touch(group)
        return held

    def free(self, blocks: Blocks) -> None:
        """Let go of what `take` gave, once. Last blocks first, as upstream does: a prefix is worth
        more than what follows it.
        """
        pool = self._scheduler.kv_cache_manager.block_pool
        for group in blocks:
            pool.free_blocks(reversed(group))


def block_ids(blocks: Blocks) -> tuple[tuple[int, ...], ...]:
    """Their numbers."""
    return tuple(tuple(block.block_id for block in group) for group in blocks)


def distinct(blocks: Blocks) -> set[int]:
    """The numbers of the blocks that take up room."""
    return {block.block_id for group in blocks for block in group if not block.is_null}


def check_holds(held: Iterable[Blocks]) -> None:
    """Raise AssertionError if one of these could be given to somebody else."""
    blocks = [block for each in held for group in each for block in group if not block.is_null]
    holds = Counter(block.block_id for block in blocks)
    for block in blocks:
        if block.ref_cnt < holds[block.block_id]:
            raise AssertionError(f"block {block.block_id} is held and could be given away")
