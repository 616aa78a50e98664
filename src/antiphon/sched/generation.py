"""The scheduler of generation stages: one forward per input, nothing sampled.

Upstream runs such requests as pooling requests: it schedules their input, and stops them when the
runner returns an output. Added here: all input tokens of a request go into one step if the step's
budget can hold them at all.
"""

from __future__ import annotations

from typing import Any, ClassVar

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from antiphon.errors import InputTooLongError
from antiphon.sched.mixin import StageSchedulerMixin


class GenerationScheduler(StageSchedulerMixin, Scheduler):
    """One shot per request; round-robin is upstream's queue order."""

    reserved_tokens: ClassVar[int] = 0  # nothing is sampled

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._left = 0  # tokens of this step's budget that no request has been promised

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        started = sum(r.num_tokens - r.num_computed_tokens for r in self.running)
        self._left = self.max_num_scheduled_tokens - started
        return super().schedule(throttle_prefills)

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
