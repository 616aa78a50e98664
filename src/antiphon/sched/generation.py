"""The scheduler of generation stages: one forward per input, nothing sampled.

Upstream runs such requests as pooling requests: it schedules their input, and stops them when the
runner returns an output. Added here: all input tokens of a request go into one step if the step's
budget can hold them at all, and a request on a stream edge runs once per chunk.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from vllm import PoolingParams
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import FinishReason
from vllm.v1.request import Request, RequestStatus

from antiphon.core.prompt_plan import PromptPlan
from antiphon.core.window import StreamWindow
from antiphon.errors import InputTooLongError
from antiphon.sched.inputs import Arrival
from antiphon.sched.mixin import StageSchedulerMixin
from antiphon.upstream.prompt import replace_prompt, with_extra

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
        self._turn: list[str] = []  # streams that came into the window since the last step
        self._ran: set[str] = set()  # requests that have been in the queue
        self._own: dict[str, PoolingParams | None] = {}  # parameters without those of a chunk

    # --- upstream's hooks ---------------------------------------------------------------------

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        turn, self._turn = self._turn, []
        for uid in turn:
            self._go_on(uid)
        if self._idles and (next_ := self._window.let_in()) is not None:
            self._go_on(next_)
        held = self.parking.held
        running = [r for r in self.running if r.request_id not in held]
        started = sum(r.num_tokens - r.num_computed_tokens for r in running)
        self._left = self.max_num_scheduled_tokens - started
        return super().schedule(throttle_prefills)

    def has_requests(self) -> bool:
        return bool(self._turn) or self._idles or super().has_requests()

    @property
    def _idles(self) -> bool:
        """Whether no stream in the window has a chunk to run, while others wait with one."""
        awake = self.pause_state == PauseState.UNPAUSED
        return awake and self._window.waiting > 0 and not self._runnable

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
        # Of an input that takes several steps upstream never schedules the model's last position.
        whole = atomic or num_tokens == self.max_model_len
        if whole and num_tokens > self.max_num_scheduled_tokens:
            return InputTooLongError(
                f"an input of {num_tokens} tokens does not fit the stage's budget of "
                f"{self.max_num_scheduled_tokens} tokens per step; raise max_num_batched_tokens"
            )
        return super().prompt_error(num_tokens)

    # --- chunks -------------------------------------------------------------------------------

    def _begin(self, uid: str, plan: PromptPlan | None, cached: int = 0) -> None:
        """Run the next chunk of a request that rests, or have it wait for its turn."""
        request = self.requests[uid]
        chunk = self.coordinator.inputs.next_plan(uid)
        if chunk is None:
            return
        if not chunk.token_ids:
            chunk = replace(chunk, token_ids=(NOTHING,))
        if (error := self._plan_error(request, chunk)) is not None:
            self.fail_requests([uid], error)
            return
        replace_prompt(request, chunk.token_ids, uid)
        with_extra(request, self._own.setdefault(uid, request.pooling_params), chunk.extra)
        self._go_on(uid)

    def _may_run(self, uid: str) -> bool:
        if not super()._may_run(uid):
            return False
        return not self.coordinator.inputs.is_stream(uid) or self._window.enter(uid)

    def _release(self, uid: str) -> None:
        """Every chunk but a stream's first goes behind those that have waited meanwhile."""
        self.parking.release(uid, last=uid in self._ran)
        self._ran.add(uid)

    def _rests(self, request: Request, reason: FinishReason) -> None:
        uid = request.request_id
        self.parking.drop(request)  # nothing of a chunk is needed for the next
        match self.coordinator.inputs.ran(uid):
            case Arrival.FINISH:
                self._finish_now([uid], RequestStatus.FINISHED_STOPPED)
            case Arrival.RUN:
                self._begin(uid, None)

    def _forget(self, uid: str) -> None:
        self._ran.discard(uid)
        self._own.pop(uid, None)
        # Not at once: the one whose turn it is may end together with this one.
        if (next_ := self._window.leave(uid)) is not None:
            self._turn.append(next_)

    def check_integrity(self) -> None:
        super().check_integrity()
        self._window.check_integrity()
        if not self._ran | self._own.keys() <= self.requests.keys():
            raise AssertionError("a stream that is gone is remembered")
