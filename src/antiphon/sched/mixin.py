"""The seam between upstream's scheduler and the stage: eight overrides, each calling `super()`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from antiphon.core.options import StageOptions
from antiphon.core.prompt_plan import PromptPlan, salt_for, validate_plan
from antiphon.core.tickets import StageNews
from antiphon.errors import AntiphonError, InputTooLongError, SampledLogprobContractError
from antiphon.payload.ref import Ref
from antiphon.sched.coordinator import Arrival, Coordinator
from antiphon.upstream.envelopes import news_of, with_work
from antiphon.upstream.logprobs import sampled_logprob_violation
from antiphon.upstream.prompt import enqueue_in_place, replace_prompt
from antiphon.upstream.runner_version import require_v1_runner

_KEPT = (
    RequestStatus.FINISHED_STOPPED,
    RequestStatus.FINISHED_LENGTH_CAPPED,
    RequestStatus.FINISHED_REPETITION,
)


class StageSchedulerMixin(Scheduler):
    """Adds gates, orders for the worker and typed errors to upstream's scheduler.

    With no stage feature in use every decision is upstream's own. Not thread-safe, like upstream.
    """

    clock: ClassVar[Callable[[], float]] = staticmethod(time.monotonic)  # of input deadlines
    reserved_tokens: ClassVar[int] = 1  # of the model's length, for what is sampled

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        require_v1_runner(self.vllm_config)
        self.options = StageOptions.from_config(self.vllm_config.additional_config)
        self.coordinator = Coordinator(type(self).clock)
        self._wants_logprobs: set[str] = set()
        self._parked: dict[str, Request] = {}  # gated: known to upstream, in none of its queues
        self._endings: list[Request] = []  # finished outside a step; reported by the next update

    # --- for the stage's host -----------------------------------------------------------------

    def deliver(self, uid: str, ref: Ref) -> None:
        """A payload was announced for a waiting request."""
        if self.coordinator.deliver(uid, ref) is Arrival.FINISH_EMPTY:
            self._finish_now([uid], RequestStatus.FINISHED_STOPPED)

    def fail_requests(self, uids: Iterable[str], error: AntiphonError) -> None:
        """End these requests with `error`; the others go on."""
        uids = [uid for uid in uids if uid in self.requests]
        for uid in uids:
            self.coordinator.fail(uid, error)
        self._finish_now(uids, RequestStatus.FINISHED_ERROR)

    def prompt_error(self, num_tokens: int) -> InputTooLongError | None:
        """Why a prompt of this length is refused: it must leave room for what is sampled."""
        limit = self.max_model_len - self.reserved_tokens
        if num_tokens <= limit:
            return None
        return InputTooLongError(
            f"the prompt has {num_tokens} tokens, the stage takes at most {limit}; "
            f"shorten it or raise max_model_len"
        )

    def take_endings(self) -> list[EngineCoreOutput]:
        """The ends that no update has reported; for the host, after a step that raised."""
        endings, self._endings = self._endings, []
        return [self._ending(request) for request in endings]

    def in_flight(self) -> list[str]:
        """Requests with tokens in a step whose result has not been processed."""
        return [uid for uid, request in self.requests.items() if request.num_in_flight_tokens]

    def next_due(self) -> float | None:
        """Value of `clock` at the earliest input deadline, None if none is running."""
        return self.coordinator.gate.next_due()

    def check_integrity(self) -> None:
        """Raise AssertionError if the stage's stores and upstream's disagree."""
        self.coordinator.check_integrity()
        if not self._parked.keys() <= self.requests.keys():
            raise AssertionError("a parked request is not known to the scheduler")
        if len(self._parked) != self.coordinator.gate.blocked_count:
            raise AssertionError("parked requests and closed gates differ")
        if not self._wants_logprobs <= self.requests.keys():
            raise AssertionError("logprobs are expected of a request that is gone")
        if self.coordinator.num_unreported > len(self._endings):
            raise AssertionError("an error is kept that no end will report")

    # --- upstream's hooks ---------------------------------------------------------------------

    def _enqueue_waiting_request(self, request: Request) -> None:
        if request.sampling_params is not None and request.sampling_params.logprobs is not None:
            self._wants_logprobs.add(request.request_id)
        if self.coordinator.gate.blocked(request.request_id):
            self._parked[request.request_id] = request
        else:
            super()._enqueue_waiting_request(request)

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        gate = self.coordinator.gate
        if gate.blocked_count and (expired := self.coordinator.expire()):
            self._finish_now(expired, RequestStatus.FINISHED_ERROR)
        output = super().schedule(throttle_prefills)
        for new in output.scheduled_new_reqs:
            if new.req_id in gate:
                gate.consume(new.req_id)
        return with_work(output, self.coordinator.take_work())

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        if (news := news_of(model_runner_output)) is not None:
            self._hear(news)
        if self._wants_logprobs:
            self._check_logprobs(model_runner_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if self.coordinator.routed:
            self._note_tokens(outputs)
        return self._report_endings(outputs) if self._endings else outputs

    def has_requests(self) -> bool:
        return super().has_requests() or self.coordinator.has_work or bool(self._endings)

    def _free_request(
        self, request: Request, *args: Any, **kwargs: Any
    ) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        uid = request.request_id
        self._parked.pop(uid, None)
        self._wants_logprobs.discard(uid)
        keep = request.status in _KEPT
        self.coordinator.ended(uid, keep=keep, num_tokens=request.num_tokens)
        params: tuple[dict[str, Any] | None, dict[str, Any] | None] = super()._free_request(
            request, *args, **kwargs
        )
        return params

    # --- parts --------------------------------------------------------------------------------

    def _hear(self, news: StageNews) -> None:
        """Apply what the worker answered: prompts that are ready, payloads stored, failures."""
        for uid, plan in news.planned:
            request = self._parked.get(uid)
            if request is None:
                continue  # ended while its payload was on the way
            if (error := self._plan_error(request, plan)) is not None:
                self.fail_requests([uid], error)
                continue
            del self._parked[uid]
            replace_prompt(request, plan.token_ids, salt_for(plan, uid))
            self.coordinator.planned(uid, plan)
            enqueue_in_place(self.waiting, request)
        self.coordinator.events.refs.extend(news.refs)
        for uid, info in news.failed:
            self.coordinator.fail(uid, info)
            if uid in self.requests:
                self._finish_now([uid], RequestStatus.FINISHED_ERROR)
            else:  # it had ended before: what it owed downstream could not be sent
                self.coordinator.report(uid)

    def _plan_error(self, request: Request, plan: PromptPlan) -> AntiphonError | None:
        """What is wrong with a planned prompt: upstream would raise for all requests of a step."""
        samples = request.sampling_params is not None
        own_ids = samples and not plan.rows_local  # ids that the model looks up itself
        try:
            validate_plan(
                plan,
                self.max_model_len,
                request.max_tokens if samples else 0,
                self.vllm_config.model_config.get_vocab_size() if own_ids else None,
            )
        except AntiphonError as error:
            return error
        return self.prompt_error(len(plan.token_ids))

    def _finish_now(self, uids: Iterable[str], status: RequestStatus) -> None:
        """Finish requests outside upstream's own loop; the next update reports them."""
        self._endings.extend(self.finish_requests(uids, status))

    def _note_tokens(self, outputs: dict[int, EngineCoreOutputs]) -> None:
        accepted = self.coordinator.accepted
        for group in outputs.values():
            for output in group.outputs:
                if token_ids := output.new_token_ids:
                    accepted(output.request_id, token_ids)

    def _check_logprobs(self, output: ModelRunnerOutput) -> None:
        """End the requests whose logprobs break the contract, before upstream reads any."""
        for uid in self._wants_logprobs & output.req_id_to_index.keys():
            if (violation := sampled_logprob_violation(output, uid)) is not None:
                self.fail_requests([uid], SampledLogprobContractError(violation.message))

    def _report_endings(
        self, outputs: dict[int, EngineCoreOutputs]
    ) -> dict[int, EngineCoreOutputs]:
        endings, self._endings = self._endings, []
        for request in endings:
            group = outputs.setdefault(request.client_index, EngineCoreOutputs())
            group.outputs.append(self._ending(request))
        return outputs

    def _ending(self, request: Request) -> EngineCoreOutput:
        error = self.coordinator.report(request.request_id)
        return EngineCoreOutput(
            request_id=request.request_id,
            new_token_ids=[],
            finish_reason=request.get_finished_reason() if error is None else FinishReason.ERROR,
            stop_reason=None if error is None else error.message,
            events=request.take_events(),
            trace_headers=request.trace_headers,
        )
