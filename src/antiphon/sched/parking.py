"""Requests that a step passes over, and where each of them stands meanwhile.

A running request keeps its place, its blocks and its seat, and stays preemptible: upstream skips it
by the step from which it is eligible. Any other leaves upstream's queues, so that waiting costs no
step, and comes back to the place of its arrival. Nothing is touched but requests that change.
"""

from __future__ import annotations

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from antiphon.upstream.prompt import enqueue_in_place
from antiphon.upstream.queues import NEVER, dequeue, queue_of


class Parking:
    """The parked requests of one scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.out: dict[str, Request] = {}  # in none of upstream's queues
        self.held: dict[str, Request] = {}  # running, but passed over
        # A step could schedule nothing, and nothing has changed since: another would be in vain.
        self.stalled = False

    def keep_out(self, request: Request) -> None:
        """The request is in no queue and stays so until it is released."""
        self.stalled = False
        self.out[request.request_id] = request

    def hold(self, request: Request) -> None:
        """Pass the request over from the next step on. Harmless if that is so already."""
        uid = request.request_id
        if uid in self.out or uid in self.held or request.is_finished():
            return
        self.stalled = False
        if request.status == RequestStatus.RUNNING:
            request.next_decode_eligible_step = NEVER
            self.held[uid] = request
        else:
            dequeue(self._scheduler, request)
            self.out[uid] = request

    def release(self, uid: str, *, last: bool = False) -> None:
        """The request may be scheduled again: at its place, or behind all that wait. Unknown ones
        are ignored.
        """
        self.stalled = False
        if (request := self.held.pop(uid, None)) is not None:
            request.next_decode_eligible_step = 0
        elif (request := self.out.pop(uid, None)) is not None:
            queue = queue_of(self._scheduler, request)
            if last:
                queue.add_request(request)
            else:
                enqueue_in_place(queue, request)

    def preempted(self, request: Request) -> None:
        """Upstream took the request's blocks and put it into its queue: a held one leaves it."""
        self.stalled = False
        if self.held.pop(request.request_id, None) is not None:
            request.next_decode_eligible_step = 0
            dequeue(self._scheduler, request)
            self.out[request.request_id] = request

    def forget(self, uid: str) -> None:
        """The request is over, or upstream has it again."""
        self.stalled = False
        self.out.pop(uid, None)
        if (request := self.held.pop(uid, None)) is not None:
            request.next_decode_eligible_step = 0

    def __contains__(self, uid: str) -> bool:
        return uid in self.out or uid in self.held

    def check_integrity(self) -> None:
        """Raise AssertionError if a parked request is not where it should be."""
        running = {request.request_id for request in self._scheduler.running}
        if not self.held.keys() <= running:
            raise AssertionError("a held request is not running")
        if self.out.keys() & running:
            raise AssertionError("a request that was taken out is running")
        if not self.out.keys() | self.held.keys() <= self._scheduler.requests.keys():
            raise AssertionError("a parked request is not known to the scheduler")
        if any(r.next_decode_eligible_step != NEVER for r in self.held.values()):
            raise AssertionError("a held request is eligible")
