"""The seam between upstream's scheduler and the stage: overrides that call `super()`."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs, FinishReason
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from antiphon.core.options import ConnectorSpec, StageOptions
from antiphon.core.prompt_plan import PromptPlan, validate_plan
from antiphon.core.tickets import StageNews
from antiphon.errors import AdapterError, AntiphonError, without_frames
from antiphon.payload.ref import Ref
from antiphon.sched.coordinator import Coordinator
from antiphon.sched.ends import GIVEN_UP, EndsMixin
from antiphon.sched.handoffs import Handoffs
from antiphon.sched.inputs import Arrival
from antiphon.sched.logprobs import LogprobWatch
from antiphon.sched.parking import Parking
from antiphon.sched.room import RoomMixin
from antiphon.upstream.envelopes import news_of, with_work
from antiphon.upstream.runner_version import require_v1_runner

_KEPT = (
    RequestStatus.FINISHED_STOPPED,
    RequestStatus.FINISHED_LENGTH_CAPPED,
    RequestStatus.FINISHED_REPETITION,
)


class StageSchedulerMixin(EndsMixin, RoomMixin, Scheduler):
    """Adds gates, budgets, orders for the worker and typed errors to upstream's scheduler.

    With no stage feature in use every decision is upstream's own. Not thread-safe, like upstream.
    """

    clock: ClassVar[Callable[[], float]] = staticmethod(time.monotonic)  # of input deadlines
    samples: ClassVar[bool] = True  # False: a generation stage

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        require_v1_runner(self.vllm_config)
        self.options = StageOptions.from_config(self.vllm_config.additional_config)
        options = self.options or StageOptions("", ConnectorSpec("inproc", ""))
        self.coordinator = Coordinator(
            type(self).clock, options.outputs, stage=options.stage, samples=self.samples
        )
        self.parking = Parking(self)
        self.handoffs = Handoffs(
            self,
            self.coordinator,
            self.parking,
            type(self).clock,
            options.outputs,
            stage=options.stage,
            has_left=self._has_left,
        )
        self.reservations = self._make_reservations()
        self._logprobs = LogprobWatch()
        self._moved = set()
        self._rested: list[Request] = []  # resumable, and stopped in this update
        self._victims = []
        self._endings = []

    # --- for the stage's host -----------------------------------------------------------------

    def deliver(self, uid: str, ref: Ref) -> None:
        """A chunk was announced for a request."""
        try:
            if self.coordinator.deliver(uid, ref) is Arrival.FINISH:
                self._finish_now([uid], RequestStatus.FINISHED_STOPPED)
        except AntiphonError as error:
            self.fail_requests([uid], error)

    def used(self, edge: str, keys: list[str]) -> None:
        """Consumers have used up these chunks of an outgoing edge."""
        self.coordinator.outflow.returned(keys, edge)
        self.handoffs.leases.end(keys)
        self._release_producers()

    def discard(self, keys: list[str]) -> None:
        """Nobody will take these payloads."""
        self.coordinator.discard(keys)
        self.handoffs.leases.end(keys)
        self._release_producers()

    def abandon(self, uids: Iterable[str]) -> None:
        """These requests are over on every stage: what they have sent is freed here."""
        uids = list(uids)
        self.handoffs.abandon(uids)
        self.handoffs.leases.end(self.coordinator.abandon(uids))
        self._release_producers()

    def give_up_blocks(self) -> None:
        """What lies in blocks is about to be lost: requests that are in no step compute it again.

        Those that run are upstream's matter: a stage that falls asleep has none.
        """
        losers = self.parking.give_up_blocks()
        if not self._recomputes:
            self._victims += [uid for uid in losers if uid not in self._victims]
            self._end_victims(GIVEN_UP)

    def next_due(self) -> float | None:
        """Value of `clock` at the earliest deadline or retry, None if there is none."""
        dues = (self.coordinator.next_due(), self.handoffs.next_due())
        return min((due for due in dues if due is not None), default=None)

    def check_integrity(self) -> None:
        """Raise AssertionError if the stage's stores and upstream's disagree."""
        self.coordinator.check_integrity()
        self.parking.check_integrity()
        self.handoffs.check_integrity()
        self._check_reservations()
        parked = [*self.parking.out, *self.parking.held]
        blocked = sum(self.coordinator.gate.blocked(uid) for uid in parked)
        if blocked != self.coordinator.gate.blocked_count:
            raise AssertionError("a request with a closed gate is not parked")
        self._logprobs.check_integrity(self.requests)
        if self.coordinator.num_unreported > len(self._endings):
            raise AssertionError("an error is kept that no end will report")

    # --- upstream's hooks ---------------------------------------------------------------------

    def _enqueue_waiting_request(self, request: Request) -> None:
        self._logprobs.note(request)
        if request.status == RequestStatus.WAITING_FOR_STREAMING_REQ:
            # Upstream has counted it as waiting in its queues, where it would be looked at in
            # every step.
            self.num_waiting_for_streaming_input -= 1
            request.status = RequestStatus.WAITING
            self.parking.forget(request.request_id)
            self.parking.keep_out(request)
            self._rested.append(request)
        elif not (self._may_run(request.request_id) and self._has_room(request)):
            self.parking.keep_out(request)
        else:
            self.parking.stalled = False
            super()._enqueue_waiting_request(request)

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super()._preempt_request(request, *args, **kwargs)
        self.parking.preempted(request)
        if not (self.handoffs.preempted(request) or self._recomputes):
            self._victims.append(request.request_id)

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        self._before_step()
        output = super().schedule(throttle_prefills)
        if self._victims:
            self._end_victims()
        if len(self.coordinator.gate):
            self._note_scheduled(output)
        if self.handoffs.enabled and self.handoffs.to_ship:
            self.coordinator.ship(self.handoffs.ship())
        # A step that preempts admits nobody, though it made room.
        if not (output.num_scheduled_tokens or output.preempted_req_ids):
            self._after_nothing()
        return with_work(output, self.coordinator.take_work())

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        if scheduler_output.num_scheduled_tokens:
            self.parking.stalled = False
        if (news := news_of(model_runner_output)) is not None:
            self._hear(news)
        if self.handoffs.enabled:
            self.handoffs.without_repeats(model_runner_output)
        if self._logprobs:
            for uid, error in self._logprobs.violations(model_runner_output, self.requests):
                self.fail_requests([uid], error)  # before upstream reads any
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if self.coordinator.routed:
            self._note_tokens(outputs)
        if self._rested:
            self._after_rest(outputs)
        return self._report_endings(outputs) if self._endings else outputs

    def has_requests(self) -> bool:
        if self.coordinator.has_work or self._endings or self._lets_in:
            return True
        if self.handoffs.enabled and (self.handoffs.to_ship or self.handoffs.due):
            return True
        if self.connector is None and not (self.parking.held or self.parking.stalled):
            return super().has_requests()
        # Upstream counts what is passed over, which is no work.
        return self._runnable or self._cleans_up

    def _free_request(
        self, request: Request, *args: Any, **kwargs: Any
    ) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        uid = request.request_id
        self.parking.forget(uid)
        self._logprobs.forget(uid)
        self._forget(uid)
        keep = request.status in _KEPT
        self.handoffs.ended(request, kept=keep)
        self.coordinator.ended(uid, keep=keep, num_tokens=request.num_tokens)
        params: tuple[dict[str, Any] | None, dict[str, Any] | None] = super()._free_request(
            request, *args, **kwargs
        )
        self._vacate(uid)
        return params

    # --- what the two kinds of stages do differently ------------------------------------------

    @abstractmethod
    def _begin(self, uid: str, plan: PromptPlan | None, cached: int = 0) -> None:
        """A request's next input has been planned; the worker has the cache of so many tokens."""

    @abstractmethod
    def _rests(self, request: Request, reason: FinishReason) -> None:
        """A resumable request has stopped."""

    def _forget(self, uid: str) -> None:
        """The request is over."""

    # --- parts --------------------------------------------------------------------------------

    def _before_step(self) -> None:
        """What has changed since the last one: who ends, who is passed over, who is let in."""
        if self.coordinator.gate.blocked_count and (expired := self.coordinator.expire()):
            self._finish_now(expired, RequestStatus.FINISHED_ERROR)
        if self._victims:  # upstream was told to take everybody's blocks
            self._end_victims()
        if self._moved:
            self._hold_starving()
        if self.handoffs.enabled and self.handoffs.due:
            self._end_handed_over(self.handoffs.expire())
        if self._lets_in:
            self._let_in()

    def _note_scheduled(self, output: SchedulerOutput) -> None:
        for new in output.scheduled_new_reqs:
            if new.req_id in self.coordinator.gate:
                self.coordinator.inputs.scheduled(new.req_id)
        if streams := self.coordinator.inputs.streams:
            self._moved |= streams.keys() & output.num_scheduled_tokens.keys()

    def _hear(self, news: StageNews) -> None:
        """Apply what the worker answered: chunks that are there, payloads stored, failures."""
        for arrived in news.arrived:
            if arrived.uid not in self.requests:
                continue  # ended while its chunk was on the way
            match self.coordinator.inputs.arrived(arrived):
                case Arrival.PLAN | Arrival.RUN:
                    self._begin(arrived.uid, arrived.plan, arrived.cached)
                case Arrival.GO_ON:
                    self.coordinator.inputs.go_on(arrived.uid)
                    self._go_on(arrived.uid)
                case Arrival.FINISH:
                    self._finish_now([arrived.uid], RequestStatus.FINISHED_STOPPED)
                case Arrival.AGAIN:
                    again = AdapterError("the input adapter planned a second prompt")
                    self.fail_requests([arrived.uid], again)
        for uid in self.coordinator.sent(news.refs, news.retry_in_s):
            self.parking.hold(self.requests[uid])
        for uid, info in news.failed:
            self.coordinator.fail(uid, info)
            if uid in self.requests:
                self._finish_now([uid], RequestStatus.FINISHED_ERROR)
            else:  # it had ended before: what it owed downstream could not be sent
                self.coordinator.report(uid)
        # After failures: what the worker says of a cache that it dropped for one is no reason.
        if news.acks:
            self._end_handed_over(self.handoffs.acknowledged(news.acks))

    def _plan_error(self, request: Request, plan: PromptPlan) -> AntiphonError | None:
        """What is wrong with a planned prompt: upstream would raise for all requests of a step."""
        own_ids = self.samples and not plan.rows_local  # ids that the model looks up itself
        try:
            validate_plan(
                plan,
                self.max_model_len,
                request.max_tokens if self.samples else 0,
                self.vllm_config.model_config.get_vocab_size() if own_ids else None,
            )
        except AntiphonError as error:
            return without_frames(error)
        length = len(plan.token_ids)
        return self.prompt_error(length) or self.size_error(length, request.max_tokens)

    def _note_tokens(self, outputs: dict[int, EngineCoreOutputs]) -> None:
        accepted = self.coordinator.accepted
        for group in outputs.values():
            for output in group.outputs:
                if token_ids := output.new_token_ids:
                    accepted(output.request_id, token_ids)

    def _after_rest(self, outputs: dict[int, EngineCoreOutputs]) -> None:
        """A segment's end is not the request's: it is reported as an event of its own."""
        rested, self._rested = self._rested, []
        by_uid = {out.request_id: out for group in outputs.values() for out in group.outputs}
        for request in rested:
            output = by_uid[request.request_id]
            reason, output.finish_reason = output.finish_reason, None
            assert reason is not None  # noqa: S101  upstream stopped it in this update
            self._rests(request, reason)
