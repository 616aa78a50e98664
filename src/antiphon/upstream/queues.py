"""Seam: taking a request out of upstream's queues, and having a running one passed over.

Reason: a request whose next step lacks its input must not be scheduled, and must not cost a look in
every step. Upstream passes over a running request until `Request.next_decode_eligible_step`, which
it sets itself for pipeline-parallel decoding with its v2 runner only. Names used: that attribute,
`Scheduler.{waiting, kv_holding_waiting, deferred_waiting, _holds_kv_blocks}`,
`RequestQueue.remove_requests`.
Fallback: `_handle_blocked_waiting_request`, which costs a look per step and request.
"""

from __future__ import annotations

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

NEVER = 1 << 60  # a step that is never reached


def dequeue(scheduler: Scheduler, request: Request) -> None:
    """Take a request that is not running out of whichever queue holds it."""
    scheduler.waiting.remove_requests([request])
    scheduler.kv_holding_waiting.remove_requests([request])
    scheduler.deferred_waiting.discard(request)


def queue_of(scheduler: Scheduler, request: Request) -> RequestQueue:
    """The queue in which a waiting request belongs: those that hold blocks are served first."""
    holds_blocks = scheduler._holds_kv_blocks(request)
    return scheduler.kv_holding_waiting if holds_blocks else scheduler.waiting
