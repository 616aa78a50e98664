"""What a stage's scheduler keeps beside upstream's state: gates, tickets, orders for the worker,
news for the host.

One record per request in one table. Nothing here touches a connector or a tensor (AR-INV-002).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from antiphon.core.gate import Announcement, Gate
from antiphon.core.prompt_plan import PromptPlan
from antiphon.core.tickets import Accepted, Ended, Fetch, Scalar, StageWork, Ticket
from antiphon.errors import AntiphonError, DuplicateRequestError, ErrorInfo, StageInputTimeout
from antiphon.payload.ref import Ref


@dataclass(slots=True)
class _Record:
    """One request of the stage that waits for an edge, feeds one, or both."""

    params: dict[str, Scalar]
    edges: tuple[str, ...]
    num_tokens: int = 0  # accepted so far, prompt included


@dataclass(slots=True)
class StageEvents:
    """What happened beside upstream's outputs since the host last asked."""

    refs: list[Ref] = field(default_factory=list)
    errors: dict[str, ErrorInfo] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.refs or self.errors)


class Arrival(enum.Enum):
    """What to do with a request after a ref arrived for it."""

    NOTHING = enum.auto()
    FINISH_EMPTY = enum.auto()


class Coordinator:
    """Keeps gates and tickets; knows requests by uid only."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.gate = Gate(clock)
        self.events = StageEvents()
        self._clock = clock
        self._records: dict[str, _Record] = {}
        # The records with outgoing edges, and those of `_leaving`.
        self._feeding: dict[str, _Record] = {}
        self._leaving: list[str] = []  # ended; tokens of their last step may still come
        self._reasons: dict[str, ErrorInfo] = {}  # of endings that have not been reported yet
        self._work = StageWork()

    # --- from the host ------------------------------------------------------------------------

    def expect(
        self,
        uid: str,
        *,
        waits_for: str | None,
        timeout_s: float,
        edges: Sequence[str],
        params: dict[str, Scalar],
        num_prompt_tokens: int,
    ) -> None:
        """Announce a request before it is added: the edge it waits for and the edges it feeds.

        Raises DuplicateRequestError for a uid whose end has not reached the worker yet.
        """
        if uid in self._records or uid in self._leaving:
            raise DuplicateRequestError(f"request {uid} is still running")
        record = self._records[uid] = _Record(params, tuple(edges), num_prompt_tokens)
        if edges:
            self._feeding[uid] = record
        if waits_for is not None:
            self.gate.register(uid, waits_for, timeout_s)
        if edges:
            self._work.tickets.append(Ticket(uid, tuple(edges), params))

    def deliver(self, uid: str, ref: Ref) -> Arrival:
        """A ref arrived for a waiting request. Late and repeated ones free what they name."""
        match self.gate.announce(uid, ref):
            case Announcement.ACCEPTED:
                self._work.fetches.append(Fetch(uid, ref, self._records[uid].params))
            case Announcement.EMPTY_END:
                return Arrival.FINISH_EMPTY
            case Announcement.LATE:
                if ref.key is not None:
                    self._work.discards.append(ref.key)
            case Announcement.DUPLICATE:
                pass  # its key is the one that is being fetched
        return Arrival.NOTHING

    def discard(self, keys: Sequence[str]) -> None:
        """Payloads that nobody will take."""
        self._work.discards.extend(keys)

    def forget(self, uid: str) -> None:
        """Undo `expect` for a request that upstream refused."""
        self.ended(uid, keep=False, num_tokens=0)

    def take_events(self) -> StageEvents:
        events, self.events = self.events, StageEvents()
        return events

    # --- from the scheduler -------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Orders wait for the next step, events for the host, or a deadline has passed."""
        return bool(self._work) or bool(self.events) or self._due

    @property
    def _due(self) -> bool:
        due = self.gate.next_due()
        return due is not None and due <= self._clock()

    def take_work(self) -> StageWork:
        """The orders for the step that has just been scheduled; often there are none."""
        work = self._work
        if work:
            for uid in self._leaving:
                del self._feeding[uid]
            self._leaving.clear()
            self._work = StageWork()
        return work

    def planned(self, uid: str, plan: PromptPlan) -> None:
        """The worker has made the prompt: the gate opens."""
        record = self._records[uid]
        record.num_tokens = len(plan.token_ids)
        self.gate.open(uid)

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

    @property
    def routed(self) -> bool:
        """Whether any request's outputs are wanted downstream."""
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
            self._work.tokens[uid] = Accepted([*token_ids], record.num_tokens)
        else:
            waiting.token_ids += token_ids
            waiting.num_tokens = record.num_tokens

    def ended(self, uid: str, *, keep: bool, num_tokens: int) -> None:
        """The request left the scheduler, for whatever reason."""
        self.gate.drop(uid)
        record = self._records.pop(uid, None)
        if self._work.fetches:
            self._discard_unsent(uid)
        if record is not None and record.edges:
            self._leaving.append(uid)
            self._work.ended.append(Ended(uid, keep, num_tokens))

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
        if len(self.gate) > len(self._records):
            raise AssertionError("a gate outlived its request")
        feeding = {uid for uid, record in self._records.items() if record.edges}
        if self._feeding.keys() != feeding.union(self._leaving):
            raise AssertionError("requests with outgoing edges are miscounted")
        for uid in self._work.tokens:
            if uid not in self._feeding:
                raise AssertionError(f"tokens are kept for {uid}, which is gone")
