"""A stage's scheduler with everything around it: engine core, host and worker, without a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sched_core import Done, Engine, TokenAt, token_at
from sched_worker import OUT, Answer, Worker
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutput, FinishReason
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from antiphon.core.budget import EdgeLimits
from antiphon.core.options import ConnectorSpec, OutEdge, Preemption, StageOptions
from antiphon.core.prompt_plan import PromptPlan, PromptUpdate, UpdateKind
from antiphon.core.tickets import StageWork
from antiphon.errors import AntiphonError, ErrorInfo
from antiphon.payload.ref import Ref
from antiphon.sched.ar import ARMixin, ARScheduler, AsyncARScheduler
from antiphon.sched.events import SegmentEnd
from antiphon.sched.inputs import Wait
from antiphon.sched.mixin import StageSchedulerMixin
from antiphon.sched.sessions import SessionUpdate
from antiphon.testing.clock import ManualClock
from antiphon.upstream.envelopes import news_of, with_news, work_of
from factory import make_request, make_scheduler

EDGE = "speech"
NULL_BLOCK = 0  # stands where a sliding window has dropped a block


@dataclass
class Outcome:
    """What the caller of one request has been told."""

    tokens: list[int] = field(default_factory=list)
    by_epoch: dict[int, list[int]] = field(default_factory=dict)  # the same, segment by segment
    ends: list[FinishReason] = field(default_factory=list)
    error: ErrorInfo | None = None


class Stage(Engine):
    """A stage's scheduler with everything that its host and its worker would do.

    With `limits` its outgoing edge is a stream, and its worker sends a chunk for each step's tokens
    of a routed request.
    """

    scheduler: StageSchedulerMixin

    def __init__(
        self,
        cls: type[StageSchedulerMixin] = ARScheduler,
        *,
        clock: ManualClock | None = None,
        token: TokenAt = token_at,
        limits: EdgeLimits | None = None,
        active_streams: int = 0,
        preemption: Preemption = Preemption.RECOMPUTE,
        atomic_inputs: bool = False,
        outputs: tuple[OutEdge, ...] = (),
        **kw: Any,
    ) -> None:
        overlap = issubclass(cls, AsyncARScheduler)
        kw.setdefault("enable_prefix_caching", False)
        options = StageOptions(
            "stage",
            ConnectorSpec("inproc", "run"),
            outputs=outputs
            or (() if limits is None else (OutEdge(OUT, "", stream=True, limits=limits),)),
            atomic_inputs=atomic_inputs,
            active_streams=active_streams,
            preemption=preemption,
        )
        scheduler = make_scheduler(
            with_clock(cls, clock), async_scheduling=overlap, options=options, **kw
        )
        super().__init__(scheduler, 2 if overlap else 1, token)
        self.block_size = int(kw.get("block_size", 16))
        self.pools = not scheduler.samples
        self.worker = Worker(produces=limits is not None)
        self.works = self.worker.works
        self.refs = self.worker.refs
        self.failures = self.worker.failures
        self.fetched = self.worker.fetched
        self.delivered: set[str] = set()  # keys of incoming chunks
        self.used: list[str] = []  # those that are used up
        self.sent: list[Ref] = []  # outgoing chunks, in order
        self.segments: list[SegmentEnd] = []
        self.finished: list[str] = []  # ids whose state the worker was told to drop
        self.outcomes: dict[str, Outcome] = {}
        self.arrivals = 0
        self.preemptions = 0
        self.total_blocks = self.free_blocks

    # --- the host -----------------------------------------------------------------------------

    def submit(
        self,
        uid: str,
        n: int = 10,
        *,
        gated: bool = False,
        stream: bool = False,
        session: bool = False,
        edges: tuple[str, ...] = (),
        timeout_s: float = 0.0,
        logprobs: int | None = None,
        epoch: int = 0,
        **kw: Any,
    ) -> Request:
        """A request of the pipeline, as the stage's host adds it; `stream`: gated, by chunks."""
        gated |= stream
        self.arrivals += 1
        kw.setdefault("arrival_time", float(self.arrivals))
        kw.setdefault("pooling", not self.scheduler.samples)
        request = make_request(
            uid,
            1 if gated else n,
            block_size=self.block_size,
            cache_salt=uid if gated else None,
            resumable=session or (stream and not self.scheduler.samples),
            **kw,
        )
        if logprobs is not None and request.sampling_params is not None:
            request.sampling_params.logprobs = logprobs
        self.scheduler.coordinator.expect(
            uid,
            wait=Wait(EDGE, timeout_s, stream) if gated else None,
            edges=edges,
            params={},
            num_prompt_tokens=request.num_prompt_tokens,
            epoch=epoch,
        )
        self.scheduler.add_request(request)
        if session:
            self.sessions.open_session(uid, epoch)
        if stream and self.scheduler.samples:
            self.worker.rows[uid] = 0
        self.outcomes[uid] = Outcome()
        return request

    @property
    def sessions(self) -> ARMixin:
        assert isinstance(self.scheduler, ARMixin)
        return self.scheduler

    def deliver(
        self,
        uid: str,
        answer: Answer | None = None,
        *,
        seq: int = 0,
        end: bool = True,
        epoch: int = 0,
    ) -> Ref:
        """Announce a chunk for `uid`; the worker's adapter will make `answer` of it."""
        key = f"key-{uid}-{epoch}-{seq}"
        ref = Ref(f"producer-of-{uid}", EDGE, seq, end, key=key, nbytes=8, epoch=epoch)
        if answer is not None:
            self.worker.answers[uid, seq] = answer
        self.delivered.add(key)
        self.scheduler.deliver(uid, ref)
        return ref

    def deliver_nothing(self, uid: str, *, seq: int = 0, answer: Answer | None = None) -> None:
        """The producer ended with an empty chunk; `answer` is what the adapter has left."""
        if answer is not None:
            self.worker.answers[uid, seq] = answer
        self.scheduler.deliver(uid, Ref(f"producer-of-{uid}", EDGE, seq, end=True))

    def update(
        self,
        uid: str,
        epoch: int,
        *tokens: int,
        kind: UpdateKind = UpdateKind.EXTEND,
        keep: int = 0,
        params: SamplingParams | None = None,
    ) -> None:
        """New input of a session; what is wrong with it ends the session, as in the host."""
        update = SessionUpdate(epoch, PromptUpdate(kind, tokens, keep), params)
        try:
            self.sessions.update_session(uid, update)
        except AntiphonError as error:
            self.scheduler.fail_requests([uid], error)
        self._collect()

    def interrupt(self, uid: str) -> bool:
        """As the host does it: what is reported now is all that there will be of the segment."""
        interrupted = self.sessions.interrupt(uid)
        self._collect()
        return interrupted

    def consume(self, count: int | None = None, uid: str = "") -> list[str]:
        """The consumers use up the oldest outgoing chunks (all by default; of `uid` if given)."""
        mine = [r for r in self.sent if r.key is not None and r.uid.startswith(uid)]
        taken = mine if count is None else mine[:count]
        self.sent = [ref for ref in self.sent if ref not in taken and ref.key is not None]
        keys = [ref.key for ref in taken if ref.key is not None]
        self.scheduler.used(OUT, keys)
        return keys

    def abort(self, *uids: str) -> None:
        """As the engine core does it: the caller is told by the orchestrator."""
        for request in self.scheduler.finish_requests(uids, RequestStatus.FINISHED_ABORTED):
            self.outcomes[request.request_id].ends.append(FinishReason.ABORT)

    def step(self, before_update: Callable[[], object] | None = None) -> Done:
        done = super().step(before_update)
        errors, ended = self._collect()
        for out in done:
            self._note(out, errors, ended)
        self.check()
        return done

    def drain(self, limit: int = 300) -> None:
        """Step until there is nothing left to do."""
        for _ in range(limit):
            if not self.has_work:
                return
            self.step()
        raise AssertionError(f"still busy after {limit} steps")

    def until(self, condition: Callable[[], object], limit: int = 60) -> None:
        """Step until something holds."""
        for _ in range(limit):
            if condition():
                return
            self.step()
        raise AssertionError(f"it does not hold after {limit} steps")

    def _collect(self) -> tuple[dict[str, ErrorInfo], dict[str, int]]:
        """What the host is told beside outputs: errors, and the segments that have ended."""
        events = self.scheduler.coordinator.take_events()
        self.used += events.used.get(EDGE, [])
        self.sent += events.refs
        self.segments += events.segments
        return events.errors, {end.uid: end.epoch for end in events.segments}

    def _note(
        self, out: EngineCoreOutput, errors: dict[str, ErrorInfo], ended: dict[str, int]
    ) -> None:
        uid = out.request_id
        outcome = self.outcomes[uid]
        outcome.tokens += out.new_token_ids
        # What ended in this update may be in its next segment already.
        epoch = ended[uid] if uid in ended else self.scheduler.coordinator.epoch(uid)
        outcome.by_epoch.setdefault(epoch, []).extend(out.new_token_ids)
        if out.finish_reason is not None:
            outcome.ends.append(out.finish_reason)
            outcome.error = errors.get(uid)

    # --- the worker ---------------------------------------------------------------------------

    def run(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        self.finished += scheduled.finished_req_ids
        self.preemptions += len(scheduled.preempted_req_ids or ())
        for new in scheduled.scheduled_new_reqs:
            place = new.req_id, self.scheduler.coordinator.epoch(new.req_id)
            self.worker.prompts[place] = list(new.prompt_token_ids or ())
            self.worker.begun.append((new.req_id, list(new.prompt_token_ids or ())))
        work = work_of(scheduled)
        news = self.worker.run(self.scheduler, scheduled, StageWork() if work is None else work)
        return with_news(super().run(scheduled), news)

    def returned(self, output: ModelRunnerOutput) -> None:
        if (news := news_of(output)) is not None:
            self.worker.heard(news)

    # --- what tests look at -------------------------------------------------------------------

    @property
    def free_blocks(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def held_blocks(self) -> int:
        """Blocks in the tables of live requests, or held for a hand-off; each counts once."""
        manager = self.scheduler.kv_cache_manager
        tables = (manager.get_block_ids(uid) for uid in self.scheduler.requests)
        blocks = {block for table in tables for group in table for block in group}
        return len((blocks | self.scheduler.handoffs.held_blocks()) - {NULL_BLOCK})

    def ends(self, uid: str) -> list[FinishReason]:
        return self.outcomes[uid].ends

    def error_code(self, uid: str) -> str | None:
        error = self.outcomes[uid].error
        return None if error is None else error.code

    def updates(self, uid: str) -> list[int]:
        """The accepted tokens of `uid` that the worker was told of, in order."""
        return [t for w in self.works if uid in w.tokens for t in w.tokens[uid].token_ids]

    def check(self) -> None:
        """Whatever must hold between any two steps."""
        self.scheduler.check_integrity()
        assert self.free_blocks + self.held_blocks() == self.total_blocks  # I1
        for uid, outcome in self.outcomes.items():  # I3
            assert len(outcome.ends) <= (uid not in self.scheduler.requests), uid
        for request in self.scheduler.requests.values():
            placeholders = request.num_output_placeholders
            assert placeholders >= 0
            assert request.num_computed_tokens <= request.num_tokens + placeholders

    def check_empty(self) -> None:
        """Whatever must hold once every request is over."""
        self.check()
        scheduler = self.scheduler
        assert not scheduler.requests  # I2
        assert all(len(outcome.ends) == 1 for outcome in self.outcomes.values())  # I3
        assert len(scheduler.coordinator) == 0
        assert len(scheduler.coordinator.gate) == 0
        assert not scheduler.has_requests()
        assert self.free_blocks == self.total_blocks
        assert sorted(self.finished) == sorted(self.outcomes)  # each id reached the worker once
        assert set(self.used) == self.delivered
        assert not self.worker.open


def with_clock(
    cls: type[StageSchedulerMixin], clock: ManualClock | None
) -> type[StageSchedulerMixin]:
    """The class with its clock replaced through its seam."""
    if clock is None:
        return cls
    return type(f"Timed{cls.__name__}", (cls,), {"clock": staticmethod(clock)})


def plan(*tokens: int, salt: str | None = None, rows_local: bool = False) -> PromptPlan:
    return PromptPlan(tuple(tokens), rows_local, salt)
