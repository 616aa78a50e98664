"""Seam: how many cache blocks a request can come to hold.

Reason: a stage that reserves the worst case has to count as upstream allocates: each KV group has
blocks of its own, and a window's are used again. So it asks upstream, as upstream's own gate for
whole prompts does (`Scheduler._request_remaining_blocks`). Names used:
`KVCacheManager.{coordinator, empty_kv_cache_blocks}`,
`KVCacheCoordinator.get_num_blocks_to_allocate`,
`Scheduler.{num_spec_tokens, num_lookahead_tokens, deferred_frees}`.
Fallback: the tokens divided by each group's block size, which counts windows in full.
"""

from __future__ import annotations

from vllm.v1.core.sched.scheduler import Scheduler

_IN_FLIGHT = 2  # steps that may have drafted tokens at a time


def worst_case(scheduler: Scheduler, num_tokens: int, *, recycled: bool) -> int:
    """Blocks of all KV groups for a request of which nothing is computed yet and which grows to
    `num_tokens`, and drafts beyond.

    `recycled`: what its windows have passed is given back while it runs. Blocks that it may share
    with others count in full.
    """
    if scheduler.num_spec_tokens:
        drafts = _IN_FLIGHT * (1 + scheduler.num_spec_tokens)
        num_tokens += drafts + scheduler.num_lookahead_tokens
    num_tokens = min(num_tokens, scheduler.max_model_len)
    manager = scheduler.kv_cache_manager
    return int(
        manager.coordinator.get_num_blocks_to_allocate(
            request_id="",  # nobody's: it has no blocks
            num_tokens=num_tokens,
            new_computed_blocks=manager.empty_kv_cache_blocks.blocks,
            num_encoder_tokens=0,
            total_computed_tokens=0,
            num_local_computed_tokens=0,
            num_tokens_main_model=num_tokens,
            apply_admission_cap=recycled,
        )
    )


def frees_later(scheduler: Scheduler) -> bool:
    """Whether blocks of requests that have ended are still written to by a step in flight."""
    return bool(scheduler.deferred_frees)
