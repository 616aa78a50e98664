"""Who may run, who is passed over, and what gives way when nothing could be scheduled."""

from __future__ import annotations

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import RequestStatus

from antiphon.core.options import Preemption
from antiphon.sched.coordinator import Coordinator
from antiphon.sched.reserve import ReserveMixin


class RoomMixin(ReserveMixin):
    """Parks requests and lets them go on. In a chain of stages progress is certain: what waits for
    another stage does not keep for ever what that stage's progress needs.
    """

    coordinator: Coordinator
    _moved: set[str]  # streams whose next step may need more than they have

    def in_flight(self) -> list[str]:
        """Requests with tokens in a step whose result has not been processed."""
        return [uid for uid, request in self.requests.items() if request.num_in_flight_tokens]

    def forget_prefixes(self) -> None:
        """No block is found by its content any more: upstream enters what a step will write when it
        schedules the step, and one has failed. Blocks of earlier steps go on holding what they did.
        """
        self.kv_cache_manager.evict_blocks(set(range(self.kv_cache_config.num_blocks)))

    def _may_run(self, uid: str) -> bool:
        """Whether nothing parks the request."""
        coordinator = self.coordinator
        return not (
            coordinator.gate.blocked(uid)
            or coordinator.outflow.full(uid)
            or self.handoffs.passes_over(uid)
        )

    def _release(self, uid: str) -> None:
        """Let a parked request be scheduled again."""
        self.parking.release(uid)

    def _make_room(self) -> None:
        """Take the blocks of a request that is passed over: those that wait need them.

        Only for one that has run before. Its consumer may be what keeps another stage from using
        up the chunks that a full edge waits for; new requests can wait.
        """
        if any(request.status == RequestStatus.PREEMPTED for request in self.waiting):
            full = self.coordinator.outflow.full
            held = [r for r in self.running if r.request_id in self.parking.held]
            if victims := [request for request in held if full(request.request_id)]:
                self.parking.preempt(victims[-1])

    def _hold_starving(self) -> None:
        """Pass over the streams whose next step needs a row that is not there."""
        moved, self._moved = self._moved, set()
        for uid in moved & self.coordinator.inputs.streams.keys():
            request = self.requests[uid]
            fed_back = request.num_tokens + request.num_output_placeholders
            if self.coordinator.inputs.needs(uid, fed_back - request.num_prompt_tokens):
                self.parking.hold(request)

    def _after_nothing(self) -> None:
        """A step could schedule nothing: make room, or sleep until something changes."""
        kept = self.parking.held or self.parking.out or self.handoffs.holding
        if not kept or self.pause_state != PauseState.UNPAUSED:
            return
        if any(self._is_blocked_waiting_status(r.status) for r in self.deferred_waiting):
            return  # upstream looks at these in every step
        self.parking.stalled = True
        queued = len(self.waiting) + len(self.kv_holding_waiting)
        if queued and self._recomputes and not self.in_flight():
            self._make_room()

    @property
    def _recomputes(self) -> bool:
        """Whether a request that lost its blocks can be computed again."""
        return self.options is None or self.options.preemption is Preemption.RECOMPUTE

    def _go_on(self, uid: str) -> None:
        """Let a parked request be scheduled again, unless something else still parks it."""
        if uid in self.parking and self._may_run(uid) and self._has_room(self.requests[uid]):
            self._release(uid)

    @property
    def _runnable(self) -> bool:
        """Whether a step might schedule anything."""
        if self.parking.stalled:
            return False
        return bool(self.get_num_unfinished_requests() > len(self.parking.held))

    @property
    def _cleans_up(self) -> bool:
        """Whether requests that have ended need a step.

        With a KV connector upstream takes every request that is in no queue for one whose blocks
        it still needs.
        """
        if self.connector is None:
            return self.has_finished_requests()
        queued = sum(self.get_request_counts()) + len(self.parking.out)
        delayed = len(self.requests) > queued or self.connector.has_pending_push_work()
        return bool(self.finished_req_ids) or delayed

    def _release_producers(self) -> None:
        for uid in self.coordinator.outflow.released():
            self._go_on(uid)
