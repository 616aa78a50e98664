"""The scheduler of generation stages: one forward per input, nothing sampled.

Upstream runs such requests as pooling requests: it schedules their input, and stops them when the
runner returns an output. Added here: all input tokens of a request go into one step if the step's
budget can hold them at all, and a request on a stream edge runs once per chunk.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import FinishReason
from vllm.v1.request import Request, RequestStatus

from antiphon.core.prompt_plan import PromptPlan
from antiphon.core.window import StreamWindow
from antiphon.errors import InputTooLongError
from antiphon.sched.coordinator import Arrival
from antiphon.sched.mixin import StageSchedulerMixin
from antiphon.upstream.prompt import enqueue_in_place, replace_prompt, with_extra

NOTHING = 0  # the token that stands for an empty input


class GenerationScheduler(StageSchedulerMixin, Scheduler):
    """One shot per chunk; chunks take their turn at the end of the queue, so that streams are
    served round-robin.
    """

    reserved_tokens: ClassVar[int] = 0  # nothing is sampled
    samples: ClassVar[bool] = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._left = 0  # tokens of this step's budget that no request has been promised
        self._window = StreamWindow(0 if self.options is None else self.options.active_streams)
        self._ran: set[str] = set()  # streams that have run a chunk

    # --- upstream's hooks ---------------------------------------------------------------------

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        if self._window.waiting and not self.get_num_unfinished_requests():
            self._let_in(self._window.let_in())
        started = sum(r.num_tokens - r.num_computed_tokens for r in self.running)
        self._left = self.max_num_scheduled_tokens - started
        return super().schedule(throttle_prefills)

    def has_requests(self) -> bool:
        return bool(self._window.waiting) or super().has_requests()

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        """Hold a request for the next step when this one cannot take all of it."""
        if not super()._handle_blocked_waiting_request(request):
            return False
        needed = request.num_tokens - request.num_computed_tokens
        fits_a_step = needed <= self.max_num_scheduled_tokens
        if needed > self._left and (fits_a_step or self._left <= 0):
            self._left = 0  # later ones do not overtake it
            return False
        self._left -= needed
        return True

    def prompt_error(self, num_tokens: int) -> InputTooLongError | None:
        atomic = self.options is not None and self.options.atomic_inputs
        if atomic and num_tokens > self.max_num_scheduled_tokens:
            return InputTooLongError(
                f"an input of {num_tokens} tokens does not fit the stage's budget of "
                f"{self.max_num_scheduled_tokens} tokens per step; raise max_num_batched_tokens"
            )
        return super().prompt_error(num_tokens)

    # --- chunks -------------------------------------------------------------------------------

    def _begin(self, uid: str, arrival: Arrival, plan: PromptPlan | None) -> None:
        """Run the next chunk of a request that rests, or have it wait for its turn."""
        request = self.requests[uid]
        chunk = self.coordinator.next_plan(uid)
        if chunk is None:
            return
        if not chunk.token_ids:
            chunk = replace(chunk, token_ids=(NOTHING,))
        if (error := self._plan_error(request, chunk)) is not None:
            self.fail_requests([uid], error)
            return
        self._free_request_blocks(request)
        replace_prompt(request, chunk.token_ids, uid)
        with_extra(request, chunk.extra)
        if not self.coordinator.is_stream(uid) or self._window.enter(uid):
            self._let_in(uid)

    def _let_in(self, uid: str | None) -> None:
        if uid is None or (request := self.parking.out.get(uid)) is None:
            return
        self.parking.forget(uid)
        if uid in self._ran:
            self.waiting.add_request(request)  # behind those that have waited meanwhile
        else:
            self._ran.add(uid)
            enqueue_in_place(self.waiting, request)

    def _rests(self, request: Request, reason: FinishReason) -> None:
        uid = request.request_id
        match self.coordinator.ran(uid):
            case Arrival.FINISH:
                self._finish_now([uid], RequestStatus.FINISHED_STOPPED)
            case Arrival.RUN:
                self._begin(uid, Arrival.RUN, None)

    def _forget(self, uid: str) -> None:
        self._ran.discard(uid)
        self._let_in(self._window.leave(uid))

    def check_integrity(self) -> None:
        super().check_integrity()
        self._window.check_integrity()
        if not self._ran <= self.requests.keys():
            raise AssertionError("a stream that is gone is remembered")
