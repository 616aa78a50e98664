"""The consuming side of a stage: what its requests wait for, what has come, what is used up.

One record per request that waits for an edge. Knows requests by uid only, and moves no data.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from antiphon.core.gate import Announcement, Gate, GateState
from antiphon.core.inflow import Inflow
from antiphon.core.prompt_plan import PromptPlan
from antiphon.core.tickets import Arrived
from antiphon.errors import StageInputTimeout
from antiphon.payload.ref import Ref

NoteUsed = Callable[[str, Sequence[str]], None]  # (incoming edge, keys that are needed no more)


@dataclass(frozen=True, slots=True)
class Wait:
    """The edge that a request waits for: its chunks come one by one if it is a stream."""

    edge: str
    timeout_s: float
    stream: bool = False


class Arrival(enum.Enum):
    """What to do with a request after something arrived for it."""

    NOTHING = enum.auto()
    FINISH = enum.auto()  # its input is over, and nothing of it is left to run
    PLAN = enum.auto()  # the prompt is there
    AGAIN = enum.auto()  # a second prompt, which no adapter may plan
    GO_ON = enum.auto()  # the rows that it waited for are there
    RUN = enum.auto()  # generation: the next chunk may run


@dataclass(frozen=True, slots=True)
class Delivered:
    """What became of a ref: chunks to fetch now, in order, and chunks that nobody takes."""

    arrival: Arrival = Arrival.NOTHING
    fetch: tuple[Ref, ...] = ()
    discard: tuple[Ref, ...] = ()


class Inputs:
    """Gates and what has come through them. `samples`: the stage is an ar stage."""

    def __init__(
        self, clock: Callable[[], float], note_used: NoteUsed, *, stage: str, samples: bool
    ) -> None:
        self._stage = stage
        self.gate = Gate(clock)
        self.streams: dict[str, Inflow] = {}  # ar requests that need a row for each token
        self._note_used = note_used
        self._samples = samples
        self._inflows: dict[str, Inflow] = {}

    def expect(self, uid: str, wait: Wait, epoch: int) -> None:
        """Hold a request until its edge has delivered. Raises DuplicateRequestError, ValueError."""
        self.gate.register(uid, wait.edge, wait.timeout_s, stream=wait.stream, epoch=epoch)
        self._inflows[uid] = Inflow(wait.edge, wait.stream)

    def deliver(self, uid: str, ref: Ref) -> Delivered:
        """A ref arrived for a request. Late and repeated ones free what they name.

        Raises PayloadError when too many chunks wait for one that is missing.
        """
        answer = self.gate.announce(uid, ref)
        for late in answer.discard:  # it was accepted before the end was known
            self._inflows[uid].keys.discard(late.key or "")
        dropped = answer.discard
        match answer.kind:
            case Announcement.ACCEPTED if ref.key is not None:
                self._inflows[uid].accepted([ref.key])
            case Announcement.LATE:
                dropped += (ref,)
        for late in dropped:
            if late.key is not None:
                self._note_used(late.edge, [late.key])
        over = answer.kind is Announcement.EMPTY_END
        return Delivered(Arrival.FINISH if over else Arrival.NOTHING, answer.fetch, dropped)

    def arrived(self, news: Arrived) -> Arrival:
        """A chunk is local to the worker."""
        inflow = self._inflows.get(news.uid)
        if inflow is None:
            return Arrival.NOTHING
        plan = news.plan
        used = inflow.answered(news.key, news.rows, last=news.last, kept=plan is not None)
        self._note_used(inflow.edge, used)
        if plan is not None and self._samples:
            if inflow.planned:
                return Arrival.AGAIN
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

    def is_stream(self, uid: str) -> bool:
        """Whether the request's input comes in chunks."""
        inflow = self._inflows.get(uid)
        return inflow is not None and inflow.stream

    def scheduled(self, uid: str) -> None:
        """A request is in the step as a new one: what its prompt was made of is used up."""
        self.gate.consume(uid)
        inflow = self._inflows.get(uid)
        if self._samples and inflow is not None:
            self._note_used(inflow.edge, inflow.scheduled())

    # --- ar -----------------------------------------------------------------------------------

    def planned(self, uid: str) -> None:
        """The request's prompt is in place: the gate opens."""
        inflow = self._inflows[uid]
        if inflow.stream:
            self.streams[uid] = inflow
        self.gate.open(uid)

    def needs(self, uid: str, rows: int) -> bool:
        """A stream's next step needs this many rows; whether it has to wait for them."""
        inflow = self.streams[uid]
        self._note_used(inflow.edge, inflow.needs(rows))
        self.gate.consume(uid)
        if self.gate.state(uid) is not GateState.CONSUMED:
            return False
        if inflow.starves:
            self.gate.starve(uid)
            return True
        if inflow.ended and inflow.needed > inflow.rows:  # past the last row: it never waits again
            self.gate.end(uid)
            del self.streams[uid]
        return False

    def go_on(self, uid: str) -> None:
        """The rows that the request waited for are there."""
        self.gate.open(uid)

    # --- generation ---------------------------------------------------------------------------

    def next_plan(self, uid: str) -> PromptPlan | None:
        """The next chunk to run, for which the gate opens; None if none has come."""
        plan = self._inflows[uid].next_plan()
        if plan is not None:
            self.gate.open(uid)
        return plan

    def ran(self, uid: str) -> Arrival:
        """The chunk has brought its output; what comes next."""
        inflow = self._inflows[uid]
        self._note_used(inflow.edge, inflow.ran())
        if inflow.plans:
            return Arrival.RUN
        if inflow.ended:
            self.gate.end(uid)
            return Arrival.FINISH
        self.gate.starve(uid)
        return Arrival.NOTHING

    # --- ends ---------------------------------------------------------------------------------

    def expired(self) -> list[tuple[str, StageInputTimeout]]:
        """Requests that waited too long, each once, with the error that ends it."""
        found = []
        for wait in self.gate.expired():
            seen = "nothing arrived" if wait.last_seq < 0 else f"the last chunk was {wait.last_seq}"
            error = StageInputTimeout(
                f"request {wait.uid} of stage '{self._stage}' waited {wait.waited_s:.1f} s for "
                f"input on edge '{wait.edge}' ({seen}); raise the input wait timeout or look at "
                f"the producing stage"
            )
            found.append((wait.uid, error))
        return found

    def ended(self, uid: str) -> list[str]:
        """Forget a request: everything that came for it is used up. Keys behind a gap, to free."""
        behind_a_gap = [ref.key for ref in self.gate.drop(uid) if ref.key is not None]
        self.streams.pop(uid, None)
        if (inflow := self._inflows.pop(uid, None)) is not None:
            inflow.accepted(behind_a_gap)  # also the one that was one too many
            self._note_used(inflow.edge, inflow.close())
        return behind_a_gap

    def check_integrity(self) -> None:
        """Raise AssertionError if gates and what came through them disagree."""
        self.gate.check_integrity()
        if len(self.gate) != len(self._inflows) or any(u not in self.gate for u in self._inflows):
            raise AssertionError("there are gates without inputs, or inputs without gates")
        if any(self._inflows.get(uid) is not inflow for uid, inflow in self.streams.items()):
            raise AssertionError("a stream outlived its request")
        for inflow in self._inflows.values():
            inflow.check_integrity()
