"""What a stage's scheduler keeps beside upstream's state: gates, tickets, budgets, orders for the
worker, news for the host.

One record per request in one table. Nothing here touches a connector or a tensor (AR-INV-002).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from antiphon.core.gate import Announcement, Gate, GateState
from antiphon.core.inflow import Inflow
from antiphon.core.options import OutEdge
from antiphon.core.prompt_plan import PromptPlan
from antiphon.core.tickets import Accepted, Arrived, Ended, Fetch, Scalar, StageWork, Ticket
from antiphon.errors import (
    AdapterError,
    AntiphonError,
    DuplicateRequestError,
    ErrorInfo,
    StageInputTimeout,
)
from antiphon.payload.ref import Ref
from antiphon.sched.events import SegmentEnd, StageEvents
from antiphon.sched.outflow import Outflow


@dataclass(frozen=True, slots=True)
class Wait:
    """The edge that a request waits for: its chunks come one by one if it is a stream."""

    edge: str
    timeout_s: float
    stream: bool = False


@dataclass(slots=True)
class _Record:
    """One request of the stage that waits for an edge, feeds one, or both."""

    params: dict[str, Scalar]
    edges: tuple[str, ...]
    num_tokens: int = 0  # accepted so far, prompt included
    epoch: int = 0
    inflow: Inflow | None = None


class Arrival(enum.Enum):
    """What to do with a request after something arrived for it."""

    NOTHING = enum.auto()
    FAIL = enum.auto()  # its error has been noted
    FINISH = enum.auto()  # its input is over, and nothing of it is left to run
    PLAN = enum.auto()  # the prompt is there
    GO_ON = enum.auto()  # the rows that it waited for are there
    RUN = enum.auto()  # generation: the next chunk may run


class Coordinator:
    """Keeps gates, tickets and budgets; knows requests by uid only.

    `samples`: the stage is an ar stage.
    """

    def __init__(
        self, clock: Callable[[], float], edges: Iterable[OutEdge] = (), *, samples: bool = True
    ) -> None:
        self.gate = Gate(clock)
        self.outflow = Outflow(clock, edges)
        self.events = StageEvents()
        self.quiet_edges: frozenset[str] = frozenset()  # whose adapters are told of ends alone
        self._clock = clock
        self._samples = samples
        self._records: dict[str, _Record] = {}
        # The records with edges that are not quiet, and those of `_leaving`.
        self._feeding: dict[str, _Record] = {}
        self._leaving: list[str] = []  # ended; tokens of their last step may still come
        self._streams: dict[str, Inflow] = {}  # of ar requests on stream edges
        self._reasons: dict[str, ErrorInfo] = {}  # of endings that have not been reported yet
        self._work = StageWork()

    # --- from the host ------------------------------------------------------------------------

    def expect(
        self,
        uid: str,
        *,
        wait: Wait | None,
        edges: Sequence[str],
        params: dict[str, Scalar],
        num_prompt_tokens: int,
        epoch: int = 0,
    ) -> None:
        """Announce a request before it is added: the edge it waits for and the edges it feeds.

        Raises DuplicateRequestError for a uid whose end has not reached the worker yet.
        """
        if uid in self._records or uid in self._leaving:
            raise DuplicateRequestError(f"request {uid} is still running")
        record = self._records[uid] = _Record(params, tuple(edges), num_prompt_tokens, epoch)
        if wait is not None:
            record.inflow = Inflow(wait.edge, wait.stream)
            self.gate.register(uid, wait.edge, wait.timeout_s, stream=wait.stream, epoch=epoch)
        if edges:
            self._work.tickets.append(Ticket(uid, tuple(edges), params, epoch))
        if not self.quiet_edges.issuperset(edges):
            self._feeding[uid] = record

    def deliver(self, uid: str, ref: Ref) -> Arrival:
        """A ref arrived for a request. Late and repeated ones free what they name.

        Raises PayloadError when too many chunks wait for one that is missing.
        """
        answer = self.gate.announce(uid, ref)
        for late in answer.discard:
            if (inflow := self._records[uid].inflow) is not None and late.key is not None:
                inflow.keys.discard(late.key)  # it was accepted before the end was known
            self._drop(late)
        match answer.kind:
            case Announcement.ACCEPTED:
                record = self._records[uid]
                if record.inflow is not None and ref.key is not None:
                    record.inflow.accepted([ref.key])
                self._work.fetches += [Fetch(uid, next_, record.params) for next_ in answer.fetch]
            case Announcement.EMPTY_END:
                return Arrival.FINISH
            case Announcement.LATE:
                self._drop(ref)
            case Announcement.DUPLICATE:
                pass  # its key is the one that is being fetched
        return Arrival.NOTHING

    def _drop(self, ref: Ref) -> None:
        """A chunk that nobody takes."""
        if ref.key is not None:
            self._work.discards.append(ref.key)
            self.events.note_used(ref.edge, [ref.key])

    def discard(self, keys: Sequence[str]) -> None:
        """Payloads that nobody will take."""
        self._work.discards.extend(keys)
        self.outflow.returned(keys)

    def abandon(self, uids: Iterable[str]) -> None:
        """These requests are over on every stage: what they have sent is freed here."""
        for uid in uids:
            self._work.discards += self.outflow.drop(uid)

    def forget(self, uid: str) -> None:
        """Undo `expect` for a request that upstream refused."""
        self.ended(uid, keep=False, num_tokens=0)

    def take_events(self) -> StageEvents:
        events, self.events = self.events, StageEvents()
        return events

    # --- from the scheduler: orders and news --------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Orders wait for the next step, events for the host, or a deadline has passed."""
        if self._work or self.events:
            return True
        due = self.next_due()
        return due is not None and due <= self._clock()

    def next_due(self) -> float | None:
        """Value of the clock at which a wait expires or a retry is due, None if nothing is."""
        dues = [due for due in (self.gate.next_due(), self.outflow.retry_at) if due is not None]
        return min(dues) if dues else None

    def take_work(self) -> StageWork:
        """The orders for the step that has just been scheduled; often there are none."""
        self._work.retry = self.outflow.take_retry()
        work = self._work
        if work:
            for uid in self._leaving:
                self._feeding.pop(uid, None)
            self._leaving.clear()
            self._work = StageWork()
        return work

    def sent(self, refs: Sequence[Ref], retry_in_s: float | None) -> list[str]:
        """The worker has stored these chunks; the requests that must not produce more for now."""
        self.events.refs.extend(refs)
        self.outflow.retry_in(retry_in_s)
        return self.outflow.sent(refs, self._records.__contains__)

    # --- from the scheduler: input ------------------------------------------------------------

    def arrived(self, news: Arrived) -> Arrival:
        """A chunk is local to the worker."""
        record = self._records.get(news.uid)
        if record is None or record.inflow is None:
            return Arrival.NOTHING
        inflow, plan = record.inflow, news.plan
        used = inflow.answered(news.key, news.rows, last=news.last, kept=plan is not None)
        self.events.note_used(inflow.edge, used)
        if plan is not None and self._samples:
            if inflow.planned:
                self.fail(news.uid, AdapterError("the input adapter planned a second prompt"))
                return Arrival.FAIL
            inflow.planned, inflow.running = True, news.key
            return Arrival.PLAN
        if plan is not None:
            inflow.plans.append((plan, news.key))
        return self._now_possible(news.uid, inflow)

    def _now_possible(self, uid: str, inflow: Inflow) -> Arrival:
        if self.gate.state(uid) is not GateState.WAITING:
            return Arrival.NOTHING
        if inflow.plans:
            return Arrival.RUN
        if self._samples and inflow.planned:
            return Arrival.NOTHING if inflow.starves else Arrival.GO_ON
        return Arrival.FINISH if inflow.ended else Arrival.NOTHING

    def planned(self, uid: str, plan: PromptPlan) -> None:
        """An ar request's prompt is in place: the gate opens."""
        record = self._records[uid]
        record.num_tokens = len(plan.token_ids)
        if record.inflow is not None and record.inflow.stream:
            self._streams[uid] = record.inflow
        self.gate.open(uid)

    def next_plan(self, uid: str) -> PromptPlan | None:
        """Generation: the next chunk to run, for which the gate opens; None if none has come."""
        inflow = self._records[uid].inflow
        plan = None if inflow is None else inflow.next_plan()
        if plan is not None:
            self.gate.open(uid)
        return plan

    def is_stream(self, uid: str) -> bool:
        """Whether the request's input comes in chunks."""
        record = self._records.get(uid)
        return record is not None and record.inflow is not None and record.inflow.stream

    def ran(self, uid: str) -> Arrival:
        """Generation: the chunk has brought its output; what comes next."""
        inflow = self._records[uid].inflow
        assert inflow is not None  # noqa: S101  only consumers run chunks
        self.events.note_used(inflow.edge, inflow.ran())
        if inflow.ended and not inflow.plans:
            self.gate.end(uid)
            return Arrival.FINISH
        self.gate.starve(uid)
        return Arrival.RUN if inflow.plans else Arrival.NOTHING

    def scheduled(self, uid: str) -> None:
        """A request is in the step as a new one: what its prompt was made of is used up."""
        self.gate.consume(uid)
        record = self._records.get(uid)
        if self._samples and record is not None and record.inflow is not None:
            self.events.note_used(record.inflow.edge, record.inflow.scheduled())

    @property
    def streams(self) -> dict[str, Inflow]:
        """The ar requests that need a row for each token that they feed back."""
        return self._streams

    def needs(self, uid: str, rows: int) -> bool:
        """An ar stream's next step needs this many rows; whether it has to wait for them."""
        inflow = self._streams[uid]
        self.events.note_used(inflow.edge, inflow.needs(rows))
        self.gate.consume(uid)
        if self.gate.state(uid) is not GateState.CONSUMED:
            return False
        if inflow.starves:
            self.gate.starve(uid)
            return True
        if inflow.ended and inflow.needed > inflow.rows:  # past the last row: it never waits again
            self.gate.end(uid)
            del self._streams[uid]
        return False

    def go_on(self, uid: str) -> None:
        """The rows that the request waited for are there."""
        self.gate.open(uid)

    # --- from the scheduler: tokens and ends --------------------------------------------------

    def fail(self, uid: str, error: AntiphonError | ErrorInfo) -> None:
        """Remember why a request ends; the scheduler ends it and reports it with a step."""
        info = error.to_wire() if isinstance(error, AntiphonError) else error
        self._reasons.setdefault(uid, info)

    def report(self, uid: str) -> ErrorInfo | None:
        """The request's end is reported now: its error, if it has one, goes to the host with it."""
        if (info := self._reasons.pop(uid, None)) is not None:
            self.events.errors.setdefault(uid, info)
        return self.events.errors.get(uid)

    @property
    def num_unreported(self) -> int:
        """Errors of requests whose end has not been reported yet."""
        return len(self._reasons)

    def expire(self) -> list[str]:
        """Requests that waited too long, each with its error noted."""
        expired = self.gate.expired()
        for wait in expired:
            seen = "nothing arrived" if wait.last_seq < 0 else f"the last chunk was {wait.last_seq}"
            self.fail(
                wait.uid,
                StageInputTimeout(
                    f"request {wait.uid} waited {wait.waited_s:.1f} s for input on edge "
                    f"'{wait.edge}' ({seen}); raise the input wait timeout or look at the "
                    f"producing stage"
                ),
            )
        return [wait.uid for wait in expired]

    def epoch(self, uid: str) -> int:
        """The segment that the request is in; 0 for one that is not known any more."""
        record = self._records.get(uid)
        return 0 if record is None else record.epoch

    @property
    def routed(self) -> bool:
        """Whether any request's steps are wanted downstream."""
        return bool(self._feeding)

    def accepted(self, uid: str, token_ids: Sequence[int]) -> None:
        """Tokens that upstream appended to the request; kept for the worker if an edge wants them.

        Called for every request in every step, so it does no more than it must.
        """
        record = self._feeding.get(uid)
        if record is None:
            return
        record.num_tokens += len(token_ids)
        waiting = self._work.tokens.get(uid)
        if waiting is None:
            self._work.tokens[uid] = Accepted([*token_ids], record.num_tokens, record.epoch)
        else:
            waiting.token_ids += token_ids
            waiting.num_tokens = record.num_tokens

    def segment_ended(self, uid: str, reason: str, *, keep: bool, num_tokens: int) -> None:
        """A segment of a session is over; its outlets close, and what comes next is another's."""
        record = self._records[uid]
        self.events.segments.append(SegmentEnd(uid, record.epoch, reason))
        if record.edges:
            self._work.ended.append(Ended(uid, keep, num_tokens, record.epoch))

    def segment_begins(self, uid: str, epoch: int, num_tokens: int, first: int) -> None:
        """The session goes on with `num_tokens` tokens, of which rows are wanted from `first`."""
        record = self._records[uid]
        record.epoch, record.num_tokens = epoch, num_tokens
        if record.edges:
            self._work.tickets.append(Ticket(uid, record.edges, record.params, epoch, first))

    def ended(self, uid: str, *, keep: bool, num_tokens: int) -> None:
        """The request left the scheduler, for whatever reason."""
        behind_a_gap = [ref.key for ref in self.gate.drop(uid) if ref.key is not None]
        self._work.discards += behind_a_gap
        record = self._records.pop(uid, None)
        self._streams.pop(uid, None)
        if self._work.fetches:
            self._discard_unsent(uid)
        if record is None:
            return
        if record.inflow is not None:
            record.inflow.accepted(behind_a_gap)  # also the one that was one too many
            self.events.note_used(record.inflow.edge, record.inflow.close())
        if record.edges:
            self.outflow.close(uid)
            self._leaving.append(uid)
            self._work.ended.append(Ended(uid, keep, num_tokens, record.epoch))

    def _discard_unsent(self, uid: str) -> None:
        """A payload that was announced for an ended request and not fetched yet is freed."""
        work = self._work
        unsent = [fetch for fetch in work.fetches if fetch.uid == uid]
        work.discards += [fetch.ref.key for fetch in unsent if fetch.ref.key is not None]
        work.fetches = [fetch for fetch in work.fetches if fetch.uid != uid]

    # --- checks -------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, uid: str) -> bool:
        return uid in self._records

    def check_integrity(self) -> None:
        """Raise AssertionError if the stores disagree."""
        self.gate.check_integrity()
        self.outflow.check_integrity()
        if len(self.gate) > len(self._records):
            raise AssertionError("a gate outlived its request")
        if not self._streams.keys() <= self._records.keys():
            raise AssertionError("a stream outlived its request")
        told = {u for u, r in self._records.items() if not self.quiet_edges.issuperset(r.edges)}
        if not told <= self._feeding.keys() <= told.union(self._leaving):
            raise AssertionError("requests with outgoing edges are miscounted")
        for uid in self._work.tokens:
            if uid not in self._feeding:
                raise AssertionError(f"tokens are kept for {uid}, which is gone")
