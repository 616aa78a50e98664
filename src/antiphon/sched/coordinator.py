"""What a stage's scheduler keeps beside upstream's state: inputs, tickets, budgets, orders for the
worker, news for the host.

One record per request in one table. Nothing here touches a connector or a tensor (AR-INV-002).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass

from antiphon.core.options import OutEdge
from antiphon.core.prompt_plan import PromptPlan
from antiphon.core.tickets import Accepted, Ended, Fetch, KvShip, Scalar, StageWork, Ticket
from antiphon.errors import AntiphonError, DuplicateRequestError, ErrorInfo
from antiphon.payload.ref import Ref
from antiphon.sched.events import SegmentEnd, StageEvents
from antiphon.sched.inputs import Arrival, Inputs, Wait
from antiphon.sched.outflow import Outflow


@dataclass(slots=True)
class _Record:
    """One request of the stage that waits for an edge, feeds one, or both."""

    params: dict[str, Scalar]
    edges: tuple[str, ...]
    num_tokens: int = 0  # accepted so far, prompt included
    epoch: int = 0


class Coordinator:
    """Keeps gates, tickets and budgets; knows requests by uid only.

    `samples`: the stage is an ar stage.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        edges: Iterable[OutEdge] = (),
        *,
        stage: str = "",
        samples: bool = True,
    ) -> None:
        self.inputs = Inputs(clock, self._note_used, stage=stage, samples=samples)
        self.gate = self.inputs.gate
        self.outflow = Outflow(clock, edges)
        self.events = StageEvents()
        self.quiet_edges: frozenset[str] = frozenset()  # whose adapters are told of ends alone
        self.handing_over: Container[str] = ()  # requests whose KV cache is on its way
        self._clock = clock
        self._records: dict[str, _Record] = {}
        # The records with edges that are not quiet, and those of `_leaving`.
        self._feeding: dict[str, _Record] = {}
        self._leaving: list[str] = []  # ended; tokens of their last step may still come
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

        Raises DuplicateRequestError for a uid whose end has not reached the worker yet, or whose
        KV cache is still being handed over.
        """
        if uid in self._records or uid in self._leaving or uid in self.handing_over:
            raise DuplicateRequestError(f"request {uid} is still running")
        if wait is not None:
            self.inputs.expect(uid, wait, epoch)
        record = self._records[uid] = _Record(params, tuple(edges), num_prompt_tokens, epoch)
        if edges:
            self._work.tickets.append(Ticket(uid, tuple(edges), params, epoch))
        if not self.quiet_edges.issuperset(edges):
            self._feeding[uid] = record

    def deliver(self, uid: str, ref: Ref) -> Arrival:
        """A ref arrived for a request. Late and repeated ones free what they name.

        Raises PayloadError when too many chunks wait for one that is missing.
        """
        made = self.inputs.deliver(uid, ref)
        if made.fetch:
            params = self._records[uid].params
            self._work.fetches += [Fetch(uid, next_, params) for next_ in made.fetch]
        self._work.discards += [late.key for late in made.discard if late.key is not None]
        return made.arrival

    def _note_used(self, edge: str, keys: Sequence[str]) -> None:
        self.events.note_used(edge, keys)

    def discard(self, keys: Sequence[str]) -> None:
        """Payloads that nobody will take."""
        self._work.discards.extend(keys)
        self.outflow.returned(keys)

    def abandon(self, uids: Iterable[str]) -> list[str]:
        """These requests are over on every stage: what they have sent is freed here; its keys."""
        keys = [key for uid in uids for key in self.outflow.drop(uid)]
        self._work.discards += keys
        return keys

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

    def ship(self, orders: Sequence[KvShip]) -> None:
        """KV caches that leave with the step that has just been scheduled."""
        self._work.ships += orders

    def planned(self, uid: str, plan: PromptPlan) -> None:
        """An ar request's prompt is in place: the gate opens."""
        self._records[uid].num_tokens = len(plan.token_ids)
        self.inputs.planned(uid)

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
        expired = self.inputs.expired()
        for uid, error in expired:
            self.fail(uid, error)
        return [uid for uid, _ in expired]

    def epoch(self, uid: str) -> int:
        """The segment that the request is in; 0 for one that is not known any more."""
        record = self._records.get(uid)
        return 0 if record is None else record.epoch

    def feeds(self, uid: str, edge: str) -> bool:
        """Whether a live request's outputs are wanted on this edge."""
        record = self._records.get(uid)
        return record is not None and edge in record.edges

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
        self._work.discards += self.inputs.ended(uid)
        record = self._records.pop(uid, None)
        if self._work.fetches:
            self._discard_unsent(uid)
        if record is not None and record.edges:
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
        self.inputs.check_integrity()
        self.outflow.check_integrity()
        if len(self.gate) > len(self._records):
            raise AssertionError("a gate outlived its request")
        told = {u for u, r in self._records.items() if not self.quiet_edges.issuperset(r.edges)}
        if not told <= self._feeding.keys() <= told.union(self._leaving):
            raise AssertionError("requests with outgoing edges are miscounted")
        for uid in self._work.tokens:
            if uid not in self._feeding:
                raise AssertionError(f"tokens are kept for {uid}, which is gone")
