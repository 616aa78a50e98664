"""Plays engine core and worker around one real scheduler, without a model.

`Engine.step` does what vLLM's engine core does in a step: synchronously with one batch in flight,
or, like `step_with_batch_queue`, with two. The worker's part follows from the scheduler's output:
tokens are a function of the request and the position, stage orders are answered from a table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from antiphon.core.prompt_plan import PromptPlan
from antiphon.core.tickets import Arrived, Fetch, StageNews, StageWork
from antiphon.errors import AntiphonError, ErrorInfo
from antiphon.payload.ref import Ref
from antiphon.sched.ar import ARMixin, ARScheduler, AsyncARScheduler
from antiphon.sched.coordinator import Wait
from antiphon.sched.events import SegmentEnd
from antiphon.sched.mixin import StageSchedulerMixin
from antiphon.testing.clock import ManualClock
from antiphon.upstream.envelopes import with_news, work_of
from factory import is_prefilling, make_output, make_request, make_scheduler

TOKENS = 12  # few different ones, so that stop tokens are hit
EDGE = "speech"
OUT = "codes"

Answer = PromptPlan | AntiphonError
TokenAt = Callable[[str, int], int]


def token_at(uid: str, position: int) -> int:
    """The token that the imaginary model samples for this position of this request."""
    return (sum(uid.encode()) * 31 + position * 7 + position // 3) % TOKENS


def logprobs_for(tokens: list[list[int]], width: int = 3) -> LogprobsLists:
    """One row per request of the batch, as vLLM's v1 runner returns them."""
    ids = np.zeros((len(tokens), width), dtype=np.int32)
    for row, sampled in enumerate(tokens):
        if sampled:
            ids[row] = [(sampled[0] + i) % TOKENS for i in range(width)]
    values = -ids.astype(np.float32) - np.arange(width, dtype=np.float32)
    return LogprobsLists(ids, values, np.zeros(len(tokens), dtype=np.int32))


@dataclass
class Done:
    """One engine step: what was scheduled, and the result that was processed, if any."""

    scheduled: SchedulerOutput | None = None
    outputs: dict[int, EngineCoreOutputs] | None = None

    def __iter__(self) -> Any:
        return iter(out for group in (self.outputs or {}).values() for out in group.outputs)


class Engine:
    """The engine's and the worker's part for a scheduler of any class."""

    def __init__(self, scheduler: Scheduler, depth: int = 1, token: TokenAt = token_at) -> None:
        self.scheduler = scheduler
        self.depth = depth
        self.token = token
        self.in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
        self.alter: Callable[[ModelRunnerOutput], ModelRunnerOutput] = lambda output: output
        self.pools = False  # a generation stage's worker

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_requests() or bool(self.in_flight)

    def step(self, before_update: Callable[[], object] | None = None) -> Done:
        """Schedule if there is something to do; process the oldest result once that is due."""
        done = Done()
        if self.scheduler.has_requests():
            done.scheduled = self.scheduler.schedule()
            self.in_flight.appendleft((done.scheduled, self.run(done.scheduled)))
            executed = done.scheduled.total_num_scheduled_tokens > 0
            if len(self.in_flight) < self.depth and (executed or self.scheduler.has_requests()):
                return done
        elif not self.in_flight:
            return done
        scheduled, output = self.in_flight.pop()
        if before_update is not None:
            before_update()
        done.outputs = dict(self.scheduler.update_from_output(scheduled, output))
        return done

    def run(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        """What the worker returns for this step; asked right after it was scheduled."""
        if self.pools:
            quiet = [u for u in scheduled.num_scheduled_tokens if is_prefilling(self.scheduler, u)]
            return make_output(scheduled, silent=quiet, pooler_fn=lambda _uid: torch.ones(2))
        output = make_output(scheduled, self._sample, scheduler=self.scheduler)
        requests = self.scheduler.requests
        if any(_wants_logprobs(requests[uid]) for uid in output.req_ids):
            output.logprobs = logprobs_for(output.sampled_token_ids)
        return self.alter(output)

    def _sample(self, uid: str) -> int:
        return self.token(uid, self.scheduler.requests[uid].num_computed_tokens)


def _wants_logprobs(request: Request) -> bool:
    params: SamplingParams | None = request.sampling_params
    return params is not None and params.logprobs is not None


@dataclass
class Outcome:
    """What the caller of one request has been told."""

    tokens: list[int] = field(default_factory=list)
    ends: list[FinishReason] = field(default_factory=list)
    error: ErrorInfo | None = None


class Stage(Engine):
    """A stage's scheduler with everything that its host and its worker would do."""

    scheduler: StageSchedulerMixin

    def __init__(
        self,
        cls: type[StageSchedulerMixin] = ARScheduler,
        *,
        clock: ManualClock | None = None,
        token: TokenAt = token_at,
        **kw: Any,
    ) -> None:
        overlap = issubclass(cls, AsyncARScheduler)
        kw.setdefault("enable_prefix_caching", False)
        scheduler = make_scheduler(with_clock(cls, clock), async_scheduling=overlap, **kw)
        super().__init__(scheduler, 2 if overlap else 1, token)
        self.block_size = int(kw.get("block_size", 16))
        self.pools = not scheduler.samples
        # What the worker's input adapter makes of a chunk, by consumer and seq.
        self.answers: dict[tuple[str, int], Answer | int] = {}
        self.fetched: list[tuple[str, int]] = []  # (consumer, seq), in order
        self.used: list[str] = []  # keys of chunks that consumers have used up
        self.segments: list[SegmentEnd] = []
        # What the worker reports with the next step: payloads stored, requests that failed.
        self.refs: list[Ref] = []
        self.failures: list[tuple[str, ErrorInfo]] = []
        self.works: list[StageWork] = []  # the worker's orders, step by step
        self.finished: list[str] = []  # ids whose state the worker was told to drop
        self.outcomes: dict[str, Outcome] = {}
        self.arrivals = 0
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
        **kw: Any,
    ) -> Request:
        """A request of the pipeline, as the stage's host adds it; `stream`: gated, by chunks."""
        gated |= stream
        self.arrivals += 1
        kw.setdefault("arrival_time", float(self.arrivals))
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
        )
        self.scheduler.add_request(request)
        if session:
            assert isinstance(self.scheduler, ARMixin)
            self.scheduler.open_session(uid, 0)
        self.outcomes[uid] = Outcome()
        return request

    def deliver(
        self,
        uid: str,
        answer: Answer | int | None = None,
        *,
        seq: int = 0,
        end: bool = True,
        epoch: int = 0,
    ) -> Ref:
        """Announce a chunk for `uid`; the worker's adapter will make `answer` of it: a prompt, an
        error, or so many decode rows.
        """
        key = f"key-{uid}-{epoch}-{seq}"
        ref = Ref(f"producer-of-{uid}", EDGE, seq, end, key=key, nbytes=8, epoch=epoch)
        if answer is not None:
            self.answers[uid, seq] = answer
        self.scheduler.deliver(uid, ref)
        return ref

    def deliver_nothing(self, uid: str, *, seq: int = 0) -> None:
        """The producer ended with an empty chunk."""
        self.scheduler.deliver(uid, Ref(f"producer-of-{uid}", EDGE, seq, end=True))

    def abort(self, uid: str) -> None:
        """As the engine core does it: the caller is told by the orchestrator."""
        for request in self.scheduler.finish_requests([uid], RequestStatus.FINISHED_ABORTED):
            self.outcomes[request.request_id].ends.append(FinishReason.ABORT)

    def step(self, before_update: Callable[[], object] | None = None) -> Done:
        done = super().step(before_update)
        events = self.scheduler.coordinator.take_events()
        self.used += events.used.get(EDGE, [])
        self.segments += events.segments
        for out in done:
            self._note(out, events.errors)
        self.check()
        return done

    def drain(self, limit: int = 300) -> None:
        """Step until there is nothing left to do."""
        for _ in range(limit):
            if not self.has_work:
                return
            self.step()
        raise AssertionError(f"still busy after {limit} steps")

    def _note(self, out: EngineCoreOutput, errors: dict[str, ErrorInfo]) -> None:
        outcome = self.outcomes[out.request_id]
        outcome.tokens += out.new_token_ids
        if out.finish_reason is not None:
            outcome.ends.append(out.finish_reason)
            outcome.error = errors.get(out.request_id)

    # --- the worker ---------------------------------------------------------------------------

    def run(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        self.finished += scheduled.finished_req_ids
        news = StageNews(refs=self.refs, failed=self.failures)
        self.refs, self.failures = [], []
        if (work := work_of(scheduled)) is not None:
            self.works.append(work)
            for fetch in work.fetches:
                self._fetch(fetch, news)
        return with_news(super().run(scheduled), news)

    def _fetch(self, fetch: Fetch, news: StageNews) -> None:
        uid, ref = fetch.uid, fetch.ref
        self.fetched.append((uid, ref.seq))
        match self.answers.get((uid, ref.seq)):
            case PromptPlan() as plan_:
                news.arrived.append(Arrived(uid, ref.key, ref.end, plan_))
            case AntiphonError() as error:
                news.failed.append((uid, error.to_wire()))
            case rows:
                news.arrived.append(Arrived(uid, ref.key, ref.end, rows=rows or 0))

    # --- what tests look at -------------------------------------------------------------------

    @property
    def free_blocks(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def held_blocks(self) -> int:
        """Blocks in the tables of live requests; one that several share counts once."""
        manager = self.scheduler.kv_cache_manager
        tables = (manager.get_block_ids(uid) for uid in self.scheduler.requests)
        return len({block for table in tables for group in table for block in group})

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


def with_clock(
    cls: type[StageSchedulerMixin], clock: ManualClock | None
) -> type[StageSchedulerMixin]:
    """The class with its clock replaced through its seam."""
    if clock is None:
        return cls
    return type(f"Timed{cls.__name__}", (cls,), {"clock": staticmethod(clock)})


def plan(*tokens: int, salt: str | None = None, rows_local: bool = False) -> PromptPlan:
    return PromptPlan(tuple(tokens), rows_local, salt)
