"""The schedulers of autoregressive stages.

Upstream's rule applies: async scheduling needs an AsyncScheduler.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import FinishReason
from vllm.v1.request import Request, RequestStatus

from antiphon.core.prompt_plan import PromptPlan, UpdateKind, salt_for, update_prompt
from antiphon.errors import AntiphonError, InvalidRequestError, KVTransferError
from antiphon.sched.mixin import StageSchedulerMixin
from antiphon.sched.sessions import Session, SessionUpdate
from antiphon.upstream.kv_connector import StageCacheConnector
from antiphon.upstream.prompt import renew_prompt, replace_prompt
from antiphon.upstream.queues import dequeue

INTERRUPTED = "interrupt"  # why a segment ended, beside upstream's reasons


class ARMixin(StageSchedulerMixin):
    """What sampling stages add: prompts planned once, and sessions."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sessions: dict[str, Session] = {}
        if not self.handoffs.enabled:
            # Called for every request in every step: nothing of ours stands in between then.
            plain = super()._update_request_with_output
            self._update_request_with_output = plain  # type: ignore[method-assign]

    def _begin(self, uid: str, plan: PromptPlan | None, cached: int = 0) -> None:
        request = self.requests[uid]
        assert plan is not None  # noqa: S101  an ar request is begun by its plan
        error = self._plan_error(request, plan) or self._cache_error(uid, cached)
        if error is not None:
            self.fail_requests([uid], error)
            return
        # Blocks of a stream's own tokens depend on its rows, which no key knows.
        salt = uid if self.coordinator.inputs.is_stream(uid) else salt_for(plan, uid)
        replace_prompt(request, plan.token_ids, salt)
        if cached and self._loader is not None:
            self._loader.expect(uid, cached)
        self.coordinator.planned(uid, plan)
        self._go_on(uid)

    # --- KV caches ----------------------------------------------------------------------------

    @property
    def _loader(self) -> StageCacheConnector | None:
        """What takes caches of other stages in, if the stage is set up for it."""
        connector = self.connector
        return connector if isinstance(connector, StageCacheConnector) else None

    def _cache_error(self, uid: str, cached: int) -> KVTransferError | None:
        if not cached or self._loader is not None:
            return None
        return KVTransferError(
            f"a cache has arrived for request {uid}, and the stage has nothing to load it with; "
            f"give its engine the connector of antiphon.upstream.kv_connector"
        )

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int], *args: Any, **kwargs: Any
    ) -> tuple[list[int], bool]:
        record = self.handoffs.of(request)
        if record is not None and record.handoff.stops:
            self.handoffs.surplus(record, request, new_token_ids)
            return [], False
        cut = record is not None and record.cut(request, new_token_ids)
        updated: tuple[list[int], bool] = super()._update_request_with_output(
            request, new_token_ids, *args, **kwargs
        )
        if record is not None:
            self.handoffs.accepted(record, request, updated[0], cut=cut)
        return updated

    # --- sessions -----------------------------------------------------------------------------

    def open_session(self, uid: str, epoch: int) -> None:
        """The request, which has just been added as resumable, is the session's first segment."""
        self._sessions[uid] = Session(epoch)

    def update_session(self, uid: str, update: SessionUpdate) -> None:
        """New input for a session: at once if it rests or is replaced, else after its segment.

        Raises InvalidRequestError if there is no such session, or it cannot take the update.
        """
        session = self._sessions.get(uid)
        if session is None:
            raise InvalidRequestError(f"there is no session {uid}; it has ended")
        if update.params is not None and update.params.max_tokens is None:
            raise InvalidRequestError("max_tokens is not given")
        now = session.offer(update)
        if not now and update.prompt.kind is UpdateKind.REPLACE:
            self.interrupt(uid)
        elif now:
            self._next_segment(self.requests[uid], session)

    def interrupt(self, uid: str) -> bool:
        """End the running segment of a session here and now; whether there was one.

        What is in flight for it is dropped when it comes.
        """
        session = self._sessions.get(uid)
        if session is None or session.resting:
            return False
        request = self.requests[uid]
        self.parking.forget(uid)
        if request.status == RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            dequeue(self, request)
        self._inflight_prefills.discard(request)
        self._handle_stopped_request(request)
        self._rested.remove(request)
        self._segment_over(request, INTERRUPTED, keep=False)
        return True

    def _rests(self, request: Request, reason: FinishReason) -> None:
        self._segment_over(request, str(reason), keep=True)

    def _segment_over(self, request: Request, reason: str, *, keep: bool) -> None:
        uid = request.request_id
        session = self._sessions[uid]
        session.resting = True
        if not request.num_computed_tokens:
            self._free_request_blocks(request)  # of a first step that is dropped
        self.coordinator.segment_ended(uid, reason, keep=keep, num_tokens=request.num_tokens)
        if session.queued:
            self._next_segment(request, session)

    def _next_segment(self, request: Request, session: Session) -> None:
        """Begin the segment of the update that has waited longest."""
        update = session.queued.popleft()
        uid, tokens = request.request_id, request.num_tokens
        # The last sampled token has never been forwarded: the model has not seen it.
        seen = tokens - 1 if request.num_output_tokens else request.num_prompt_tokens
        try:
            prompt = update_prompt(request.all_token_ids, seen, update.prompt, self.max_model_len)
            if (error := self.prompt_error(len(prompt.token_ids))) is not None:
                raise error
        except AntiphonError as error:
            self.fail_requests([uid], error)
            return
        kept = 0 if prompt.drop_cache else min(prompt.reusable, request.num_computed_tokens)
        if not kept:
            self._free_request_blocks(request)
        first = 0 if prompt.drop_cache else min(seen, len(prompt.token_ids))
        renew_prompt(request, prompt.token_ids, same=seen, computed=kept)
        if update.params is not None:
            request.sampling_params = update.params
            assert update.params.max_tokens is not None  # noqa: S101  the update was checked
            request.max_tokens = update.params.max_tokens
        request.stop_reason = None  # upstream puts it into every output
        session.epoch, session.resting = update.epoch, False
        self.coordinator.segment_begins(uid, update.epoch, request.num_tokens, first)
        self.parking.forget(uid)
        self._enqueue_waiting_request(request)

    def _may_run(self, uid: str) -> bool:
        session = self._sessions.get(uid)
        return not (session is not None and session.resting) and super()._may_run(uid)

    def _make_room(self) -> None:
        """A session that rests may rest for ever: it computes its history again when it goes on."""
        resting = (self.requests[uid] for uid, each in self._sessions.items() if each.resting)
        holder = next((request for request in resting if request.num_computed_tokens), None)
        if holder is None or len(self.running) >= self.max_num_running_reqs:
            super()._make_room()
            return
        self.parking.drop(holder)

    def _forget(self, uid: str) -> None:
        self._sessions.pop(uid, None)
        if self._loader is not None:
            self._loader.forget(uid)

    def check_integrity(self) -> None:
        super().check_integrity()
        for uid, session in self._sessions.items():
            session.check_integrity()
            if uid not in self.requests:
                raise AssertionError("a session outlived its request")
            if session.resting and uid not in self.parking.out:
                raise AssertionError("a session rests and could be scheduled")
        if self._loader is not None:
            self._loader.check_integrity(self.requests)


class ARScheduler(ARMixin, Scheduler):
    """Synchronous scheduling."""


class AsyncARScheduler(ARMixin, AsyncScheduler):
    """Asynchronous scheduling: a step is scheduled before the last one's result is known."""
