"""Seam: the prompt and the queue place of a request that upstream's scheduler already knows.

Reason: a gated request enters the scheduler with a placeholder, a stream brings a generation stage
one input after another, and a session goes on with new input. Upstream rewrites a request's prompt
the same way for its streaming sessions (`_update_request_as_session`), but only to extend it. Names
used: `Request._all_token_ids`, `_output_token_ids`, `block_hashes`, `update_block_hashes`,
`prompt_token_ids`, `num_prompt_tokens`, `num_computed_tokens`, `cache_salt`, `pooling_params`.
Fallback: a new `Request` object in place of the old one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vllm.pooling_params import PoolingParams
from vllm.v1.core.sched.request_queue import FCFSRequestQueue, RequestQueue
from vllm.v1.request import Request, RequestStatus


def replace_prompt(request: Request, token_ids: Sequence[int], salt: str | None) -> None:
    """Give `request`, of which nothing is computed, this prompt; its block hashes follow."""
    request.cache_salt = salt
    renew_prompt(request, token_ids, same=0, computed=0)


def renew_prompt(request: Request, token_ids: Sequence[int], *, same: int, computed: int) -> None:
    """Give `request`, which has nothing in flight that counts, this prompt.

    The first `same` tokens are those that it has, `computed` of them are in its blocks.
    """
    if computed > min(same, request.num_computed_tokens):
        raise AssertionError(f"request {request.request_id} has not computed {computed} tokens")
    request.prompt_token_ids = list(token_ids)
    request.num_prompt_tokens = len(token_ids)
    request._all_token_ids[:] = token_ids  # in place: upstream keeps a read-only view of it
    request._output_token_ids.clear()
    request.num_computed_tokens = computed
    # How many tokens a hash covers is upstream's matter: with any change all are made anew.
    request.block_hashes.clear()
    request.update_block_hashes()


def with_extra(request: Request, own: PoolingParams | None, extra: Mapping[str, object]) -> None:
    """Let a pooling request's model see `extra` beside the request's `own` parameters."""
    if own is not None and extra:
        params = own.clone()
        params.extra_kwargs = {**(own.extra_kwargs or {}), **extra}
        own = params
    request.pooling_params = own


def enqueue_in_place(queue: RequestQueue, request: Request) -> None:
    """Put `request` where it would stand had it never left the queue."""
    if not isinstance(queue, FCFSRequestQueue):
        queue.add_request(request)  # ordered by priority and arrival
        return
    place = _place(request)
    for index, other in enumerate(queue):
        if _place(other) > place:
            queue.insert(index, request)
            return
    queue.append(request)


def _place(request: Request) -> tuple[bool, float]:
    """Those that have been preempted resume first."""
    return request.status != RequestStatus.PREEMPTED, request.arrival_time
