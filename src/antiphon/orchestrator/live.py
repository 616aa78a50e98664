"""A request that is alive, and the one path on which it ends.

Runs on the event loop's thread. Each request gets exactly one terminal outcome: a reply, or one
typed error. It is told when every stage has let go of the request, or after `PATIENCE_S`: a stage
that hangs holds up no caller.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from antiphon.errors import AntiphonError, without_frames
from antiphon.orchestrator.api import Finished, OmniEvent
from antiphon.orchestrator.clients import Frames
from antiphon.orchestrator.flow import Flow
from antiphon.orchestrator.route import Route
from antiphon.orchestrator.timers import Timer
from antiphon.payload.ref import Ref
from antiphon.pipeline.entry import AnyPrompt
from antiphon.stage.messages import Abort, Output

PATIENCE_S = 1.0


class Phase(enum.Enum):
    """Of a request, a session, or a session's segment; it only ever goes on to a later one."""

    QUEUED = enum.auto()  # a segment that has not begun
    RUNNING = enum.auto()
    ENDING = enum.auto()  # the stages have been told, and not all have acknowledged
    TERMINAL = enum.auto()  # the outcome is known


@dataclass(slots=True, eq=False)
class LiveRequest:
    """One request; `events` ends with one terminal item: a `Finished` or an error.

    `events` has no bound of its own: nothing of a reply may be lost to a slow reader, and it holds
    no more than the reply, which is kept anyway and ends at the request's own limits.
    """

    label: str | None
    flow: Flow
    route: Route
    over: Callable[[LiveRequest], None]
    events: asyncio.Queue[OmniEvent | AntiphonError] = field(default_factory=asyncio.Queue)
    phase: Phase = Phase.RUNNING
    outcome: AntiphonError | str | None = None  # of one that is being ended: error, finish reason
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    timer: Timer | None = None
    cause: str | None = None  # of an abort: who wanted it
    quiet: bool = True  # nothing has been handed out
    known: asyncio.Event = field(default_factory=asyncio.Event)  # the outcome has been told

    def start(self, prompts: Sequence[AnyPrompt]) -> None:
        """Submit it to its stages."""
        self.flow.start(prompts)
        self.route.observers.began(self.flow)

    @property
    def uid(self) -> str:
        return self.flow.plan.uid

    def on_output(self, stage: str, output: Output, frames: Frames) -> bool:
        """What a step brought; false if it belongs to nothing that is known."""
        if self.phase is not Phase.RUNNING:
            return True
        try:
            events = self.flow.on_output(stage, output, frames)
        except AntiphonError as error:
            self.end(error)
            return True
        self._hand_out(events)
        if self.flow.done:
            self._reply()
        elif self.flow.stopped:
            self._end("stop", None)
        return True

    def _hand_out(self, events: Sequence[OmniEvent]) -> None:
        for event in events:
            self.events.put_nowait(event)
        if self.quiet and not self.flow.gathered.empty:
            self.quiet = False
            self.route.observers.first_output(self.flow)

    def on_ref(self, stage: str, ref: Ref) -> bool:
        """A payload is stored; false if nobody will take it."""
        if self.phase is not Phase.RUNNING:
            return False
        try:
            self.flow.on_ref(stage, ref)
        except AntiphonError as error:
            self.end(error)
            return False
        return True

    def units(self) -> list[str]:
        """The names of all its units."""
        return [uid for uids in self.flow.uids().values() for uid in uids]

    def needs(self, stage: str) -> bool:
        """Whether the request cannot go on without this stage."""
        return self.flow.needs(stage)

    def check_integrity(self) -> None:
        """Raise AssertionError if it runs and has nothing to wait for."""
        if self.phase is Phase.RUNNING and self.flow.done:
            raise AssertionError("a request is done and goes on")

    def end(self, error: AntiphonError | None, cause: str | None = None) -> None:
        """Tell every stage on the path; the outcome follows when all have acknowledged, or soon.

        Without an error it is an abort, and `cause` says who wanted it. Harmless if the request is
        ending already.
        """
        self._end("abort" if error is None else without_frames(error), cause)

    def _end(self, outcome: AntiphonError | str, cause: str | None) -> None:
        if self.phase is not Phase.RUNNING:
            return
        self.phase, self.outcome, self.cause = Phase.ENDING, outcome, cause
        self.set_timer(PATIENCE_S, self._tell)
        units = self.flow.uids()
        self.route.ask({stage: partial(Abort, uids) for stage, uids in units.items()}, self._close)

    def set_timer(self, seconds: float, call: Callable[[], None]) -> None:
        """Order a call in place of the one that is, as an outcome has no use for a deadline."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.route.later(seconds, call)

    def _close(self) -> None:
        """No stage holds anything of it."""
        self._tell()
        self._let_go()

    def _tell(self) -> None:
        """Tell the outcome of a request that was ended, if that has not been done."""
        if self.known.is_set():
            return
        if isinstance(self.outcome, AntiphonError):
            self._conclude(self.outcome)
        else:
            self._conclude(self._replied(self.outcome))

    def _reply(self) -> None:
        self._conclude(self._replied(None))
        self._let_go()

    def _replied(self, finish_reason: str | None) -> Finished:
        self._hand_out(self.flow.rest())
        return Finished(self.flow.reply(finish_reason))

    def _conclude(self, outcome: Finished | AntiphonError) -> None:
        self.outcome = None  # an error that is raised holds this request
        self.known.set()
        self.events.put_nowait(self._recorded(outcome))

    def _let_go(self) -> None:
        self.phase = Phase.TERMINAL
        if self.timer is not None:
            self.timer.cancel()
        self.ended.set()
        self.over(self)

    def _recorded(self, outcome: Finished | AntiphonError) -> Finished | AntiphonError:
        """The outcome, with the request's record if it is a reply."""
        ended = partial(self.route.observers.ended, self.flow, self.route.replicas)
        if isinstance(outcome, AntiphonError):
            ended("error", outcome.code, str(outcome))
            return outcome
        reply = outcome.reply
        timeline = ended(reply.finish_reason, self.cause, None)
        return Finished(dataclasses.replace(reply, timeline=timeline))
