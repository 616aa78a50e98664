"""Seam: the prompt and the queue place of a request that upstream's scheduler already knows.

Reason: a gated request enters the scheduler with a placeholder; its real prompt is known when its
stage input has arrived. Upstream rewrites a request's prompt the same way for streaming sessions
(`_update_request_as_session`), but offers no function for it. Names used: `Request._all_token_ids`,
`block_hashes`, `update_block_hashes`, `prompt_token_ids`, `num_prompt_tokens`, `cache_salt`.
Fallback: a new `Request` object in place of the old one.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm.v1.core.sched.request_queue import FCFSRequestQueue, RequestQueue
from vllm.v1.request import Request, RequestStatus


def replace_prompt(request: Request, token_ids: Sequence[int], salt: str | None) -> None:
    """Give `request`, which has never been scheduled, this prompt; its block hashes follow."""
    if request.num_computed_tokens or request.num_output_tokens:
        raise AssertionError(f"request {request.request_id} has been scheduled already")
    request.prompt_token_ids = list(token_ids)
    request.num_prompt_tokens = len(token_ids)
    request._all_token_ids[:] = token_ids  # in place: upstream keeps a read-only view of it
    request.cache_salt = salt
    request.block_hashes.clear()
    request.update_block_hashes()


def enqueue_in_place(queue: RequestQueue, request: Request) -> None:
    """Put `request` where it would stand had it never left the queue."""
    if not isinstance(queue, FCFSRequestQueue):
        queue.add_request(request)  # ordered by priority and arrival
        return
    for index, other in enumerate(queue):
        preempted = other.status == RequestStatus.PREEMPTED  # these resume first
        if not preempted and other.arrival_time > request.arrival_time:
            queue.insert(index, request)
            return
    queue.append(request)
