"""The worker's part of a stage, without a model: chunks in, decode rows, chunks out.

It follows the scheduler's orders as the real one does, and judges them: a step must not compute an
output token whose row the scheduler has not been told of.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from antiphon.core.prompt_plan import PromptPlan
from antiphon.core.tickets import Arrived, Ended, Fetch, KvAck, StageNews, StageWork
from antiphon.errors import AntiphonError, ErrorInfo
from antiphon.payload.ref import Ref

OUT = "codes"
CHUNK_BYTES = 8  # per token of an outgoing chunk


@dataclass(frozen=True)
class Given:
    """What an input adapter makes of one chunk: a prompt, decode rows, both, or nothing."""

    plan: PromptPlan | None = None
    rows: int = 0
    cached: int = 0  # leading tokens of the plan that the chunk brought the cache of


Answer = PromptPlan | AntiphonError | Given | int  # int: so many decode rows


@dataclass
class Worker:
    """One stage's worker. With `produces`, each step's tokens of a routed request are a chunk."""

    produces: bool = False
    # What the input adapter makes of a chunk, by consumer and seq.
    answers: dict[tuple[str, int], Answer] = field(default_factory=dict)
    fetched: list[tuple[str, int]] = field(default_factory=list)  # (consumer, seq), in order
    works: list[StageWork] = field(default_factory=list)  # the orders, step by step
    # What goes out with the next step beside the answers to its orders.
    refs: list[Ref] = field(default_factory=list)
    failures: list[tuple[str, ErrorInfo]] = field(default_factory=list)
    acks: list[KvAck] = field(default_factory=list)
    retry_in_s: float | None = None
    # What the scheduler has been told: decode rows of a consumer, and those that are padded now.
    rows: Counter[str] = field(default_factory=Counter)
    padded: set[str] = field(default_factory=set)
    # Prompt of each (request, epoch) as it came with its first step.
    prompts: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    begun: list[tuple[str, list[int]]] = field(default_factory=list)  # all of them, in order
    open: dict[tuple[str, int], int] = field(default_factory=dict)  # outlets: their next seq

    def run(self, scheduler: Scheduler, scheduled: SchedulerOutput, work: StageWork) -> StageNews:
        """Carry out one step's orders. AssertionError for an order that cannot be."""
        for uid in scheduled.num_scheduled_tokens:
            request = scheduler.requests[uid]
            fed_back = request.num_computed_tokens - request.num_prompt_tokens
            if uid in self.rows and uid not in self.padded:
                assert fed_back <= self.rows[uid], f"{uid} is computed without its row"
        news = StageNews(
            refs=[*self.refs],
            failed=[*self.failures],
            acks=[*self.acks],
            retry_in_s=self.retry_in_s,
        )
        self.retry_in_s = None
        self.refs.clear()
        self.failures.clear()
        self.acks.clear()
        if work:
            self.works.append(work)
            self._outlets(work, news)
            for fetch in work.fetches:
                self._fetch(fetch, news)
        return news

    def send(self, uid: str, num_tokens: int = 1) -> None:
        """The output adapter makes a chunk of its own; it is stored with the next step."""
        self._emit(uid, 0, num_tokens, self.refs)

    def heard(self, news: StageNews) -> None:
        """The scheduler processes these answers now."""
        for arrived in news.arrived:
            self.rows[arrived.uid] += arrived.rows
            if arrived.last:
                self.padded.add(arrived.uid)

    def _outlets(self, work: StageWork, news: StageNews) -> None:
        for ticket in work.tickets:
            assert (ticket.uid, ticket.epoch) not in self.open, "a second ticket"
            self.open[ticket.uid, ticket.epoch] = 0
        for uid, accepted in work.tokens.items():
            assert (uid, accepted.epoch) in self.open, f"tokens of {uid} without a ticket"
            if self.produces:
                self._emit(uid, accepted.epoch, len(accepted.token_ids), news.refs)
        for ended in work.ended:
            self._end(ended, news)

    def _emit(self, uid: str, epoch: int, num_tokens: int, refs: list[Ref]) -> None:
        seq = self.open[uid, epoch]
        self.open[uid, epoch] += 1
        key = f"{uid}/{OUT}/{epoch}/{seq}"
        nbytes = num_tokens * CHUNK_BYTES
        refs.append(Ref(uid, OUT, seq, False, key=key, nbytes=nbytes, epoch=epoch))

    def _end(self, ended: Ended, news: StageNews) -> None:
        seq = self.open.pop((ended.uid, ended.epoch), None)
        if self.produces and ended.keep and seq is not None:
            news.refs.append(Ref(ended.uid, OUT, seq, True, epoch=ended.epoch))

    def _fetch(self, fetch: Fetch, news: StageNews) -> None:
        uid, ref = fetch.uid, fetch.ref
        self.fetched.append((uid, ref.seq))
        made = self.answers.get((uid, ref.seq), 0)
        if isinstance(made, AntiphonError):
            news.failed.append((uid, made.to_wire()))
            return
        if isinstance(made, PromptPlan):
            made = Given(made)
        elif isinstance(made, int):
            made = Given(rows=made)
        news.arrived.append(Arrived(uid, ref.key, ref.end, made.plan, made.rows, made.cached))
