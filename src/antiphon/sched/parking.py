"""Requests that a step passes over, and where each of them stands meanwhile.

A running request keeps its place, its blocks and its seat, and stays preemptible: upstream skips it
by the step from which it is eligible. Any other leaves upstream's queues, so that waiting costs no
step, and comes back to the place of its arrival. Nothing is touched but requests that change.
"""

from __future__ import annotations

import time

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

    def preempt(self, request: Request) -> None:
        """Take a held request's blocks and seat; what is in flight for it is delivered still."""
        self._scheduler.running.remove(request)
        self._scheduler._preempt_request(request, time.monotonic())

    def drop(self, request: Request) -> None:
        """Free what a request holds that is in no step: it computes that again."""
        self.stalled = False
        self._scheduler._free_request_blocks(request)
        request.num_computed_tokens = 0

    def give_up_blocks(self) -> list[str]:
        """Free the blocks of all requests that are in no step; who had any."""
        scheduler = self._scheduler
        holders = [
            request
            for uid, request in scheduler.requests.items()
            if request.num_computed_tokens
            and (uid in self.held or request.status != RequestStatus.RUNNING)
        ]
        for request in holders:
            if request.request_id in self.held:
                self.preempt(request)
            else:
                self.drop(request)
        for request in list(scheduler.kv_holding_waiting):
            dequeue(scheduler, request)
            enqueue_in_place(scheduler.waiting, request)
        return [request.request_id for request in holders]

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
