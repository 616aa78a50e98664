"""A session that is alive: one long unit where it enters, and a flow for each segment.

Segments are written one after the other. What follows may overlap: the next one is written while
the sound of the one before is still made. A segment is given to its stages when its turn has come,
so that at most one is written and nothing but it has to be interrupted there.

Runs on the event loop's thread. Each segment gets one `Finished`, unless the session fails; the
session ends once. Whatever fails one segment is the end of the session: its history is gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from antiphon.core.prompt_plan import UpdateKind
from antiphon.errors import (
    AntiphonError,
    InvalidRequestError,
    StageError,
    from_wire,
    without_frames,
)
from antiphon.orchestrator.api import Finished, OmniEvent, OmniRequest, SessionEvent
from antiphon.orchestrator.clients import Frames
from antiphon.orchestrator.flow import Flow, FlowPlan, Segment
from antiphon.orchestrator.live import PATIENCE_S, Phase
from antiphon.orchestrator.route import Route
from antiphon.orchestrator.timers import Timer
from antiphon.orchestrator.uids import root_of, segment_of, segment_root, unit_uid
from antiphon.payload.ref import Ref
from antiphon.pipeline.detokenize import Detokenizer
from antiphon.pipeline.topology import Stage, Topology
from antiphon.stage.messages import Abort, Interrupt, Output

MAX_SEGMENTS = 16  # that wait, run, or whose `Finished` has not been read


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """What does not change while the session lives. It enters at the first stage of `path`."""

    uid: str
    label: str | None
    topology: Topology
    path: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class NewSegment:
    """What a segment begins with. `keep` are the tokens that a window keeps."""

    request: OmniRequest
    prompt: list[int]
    detokenizer: Detokenizer | None
    update: UpdateKind = UpdateKind.EXTEND  # of no account for a session's first segment
    keep: int = 0


@dataclass(slots=True, eq=False)
class _Turn:
    """One segment."""

    number: int
    flow: Flow
    prompt: list[int]
    phase: Phase = Phase.QUEUED
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class LiveSession:
    """One session. `events` ends with None, after an error if it failed."""

    def __init__(
        self, plan: SessionPlan, route: Route, over: Callable[[LiveSession], None]
    ) -> None:
        self.plan = plan
        self.phase = Phase.RUNNING
        self.error: AntiphonError | None = None
        self.cause: str | None = None  # of its end without an error: who wanted it
        self.events: asyncio.Queue[SessionEvent | AntiphonError | None] = asyncio.Queue()
        self.ended = asyncio.Event()
        self.route = route
        self._over = over
        self._unit = unit_uid(plan.uid, 0)
        self._turns: dict[int, _Turn] = {}  # that are not over
        self._queued: deque[_Turn] = deque()
        self._writing: _Turn | None = None  # whose segment the first stage has not ended
        self._next = 0  # number of the next segment
        self._fence = 0  # segments below it have been interrupted
        self._timer: Timer | None = None
        self._told = False  # that nothing follows, and the error before it
        self._ending: list[str] = []  # units that were alive when it was ended
        self._unread = 0  # segments whose `Finished` has not been read

    @property
    def uid(self) -> str:
        return self.plan.uid

    @property
    def label(self) -> str | None:
        return self.plan.label

    @property
    def empty(self) -> bool:
        """Whether it has no segment yet."""
        return self._next == 0

    # --- what the caller does -----------------------------------------------------------------

    def add(self, new: NewSegment) -> int:
        """Queue a segment; its number. It begins when those before it have been written.

        Raises as `require_room`.
        """
        self.require_room()
        number, self._next = self._next, self._next + 1
        segment = Segment(self._unit, number, new.update if number else None, new.keep)
        root = segment_root(self.uid, number)
        topology, path = self.plan.topology, self.plan.path
        plan = FlowPlan(root, topology, path, new.request, new.detokenizer, segment)
        flow = Flow(plan, self.route.send, self.route.deliver, self.route.clock)
        turn = self._turns[number] = _Turn(number, flow, new.prompt)
        self._unread += 1
        self._queued.append(turn)
        self._begin_next()
        return number

    def require_room(self) -> None:
        """Raise InvalidRequestError if the session was closed or has MAX_SEGMENTS already, and
        what it failed with if it did.
        """
        if self.error is not None:
            raise type(self.error)(f"the session has ended: {self.error}")
        if self.phase is not Phase.RUNNING:
            raise InvalidRequestError("the session is closed; open a new one")
        if self._unread >= MAX_SEGMENTS:
            raise InvalidRequestError(
                f"{MAX_SEGMENTS} segments wait or have not been read; read the session's events"
            )

    def read(self, event: SessionEvent) -> bool:
        """Note that an event has been taken out; whether the caller is to see it.

        Text and audio of interrupted segments are not for anybody any more.
        """
        if isinstance(event.event, Finished):
            self._unread -= 1
            return True
        return event.segment >= self._fence

    async def interrupt(self) -> None:
        """End every segment so far; returns when all stages have acknowledged."""
        self._fence = self._next
        turns = list(self._turns.values())
        if self.phase is Phase.RUNNING:
            self._interrupt([t for t in turns if t.phase in (Phase.QUEUED, Phase.RUNNING)])
        for turn in turns:
            await turn.ended.wait()

    def end(self, error: AntiphonError | None, cause: str | None = None) -> None:
        """End the session on every stage; `ended` is set when all have acknowledged. An error is
        told then, or soon.

        Without an error it is closed. Harmless if it is ending already.
        """
        if self.phase is not Phase.RUNNING:
            return
        self.phase, self.cause = Phase.ENDING, cause
        self.error = None if error is None else without_frames(error)
        if error is not None:
            self._timer = self.route.later(PATIENCE_S, self._tell)
        units = self._units_downstream(self._turns.values())
        if not self.empty:
            units[self._first] = [self._unit]
        self._ending = [uid for uids in units.values() for uid in uids]
        commands = {stage: partial(Abort, uids) for stage, uids in units.items()}
        self.route.ask(commands, self._close)

    # --- what stages report -------------------------------------------------------------------

    def on_output(self, stage: str, output: Output, frames: Frames) -> bool:
        """What a step brought; false if it belongs to a segment that is over."""
        if self.phase is not Phase.RUNNING:
            return True
        own = output.uid == self._unit
        if own and (why := _end_of_session(stage, output)) is not None:
            if self._writing is not None:
                self._writing.flow.note_error(stage, output)
            self.end(why)
            return True
        turn = self._turn(output.uid, output.epoch)
        if turn is None:
            return False
        if turn.phase is Phase.ENDING:
            if own and turn.flow.units:  # the model's history has this text, so the reply has it
                turn.flow.on_output(stage, Output(output.uid, output.token_ids), frames)
            return True
        self._take(turn, stage, output, frames)
        return True

    def _take(self, turn: _Turn, stage: str, output: Output, frames: Frames) -> None:
        quiet = turn.flow.gathered.empty
        try:
            events = turn.flow.on_output(stage, output, frames)
        except AntiphonError as error:
            self.end(error)
            return
        for event in events:
            self._emit(turn, event)
        if quiet and not turn.flow.gathered.empty:
            self.route.observers.first_output(turn.flow)
        if output.segment_finish is not None and turn is self._writing:
            self._writing = None
        if turn.flow.done:
            self._finish(turn)
        self._begin_next()

    def on_ref(self, stage: str, ref: Ref) -> bool:
        """A payload is stored; false if nobody will take it."""
        turn = self._turn(ref.uid, ref.epoch) if self.phase is Phase.RUNNING else None
        if turn is None or turn.phase is not Phase.RUNNING:
            return False
        try:
            turn.flow.on_ref(stage, ref)
        except AntiphonError as error:
            self.end(error)
            return False
        return True

    def units(self) -> list[str]:
        """The names of the units that it was ended with."""
        return self._ending

    def needs(self, stage: str) -> bool:
        """Whether the session cannot go on without this stage."""
        return any(s.name == stage for s in self.plan.path)

    def check_integrity(self) -> None:
        """Raise AssertionError if the segments disagree."""
        phases = {turn.number: turn.phase for turn in self._turns.values()}
        if Phase.TERMINAL in phases.values():
            raise AssertionError("a segment outlived its outcome")
        if [n for n, p in phases.items() if p is Phase.QUEUED] != [t.number for t in self._queued]:
            raise AssertionError("the queue and the segments disagree")
        if self._writing is not None and self._writing.number not in phases:
            raise AssertionError("a segment is written that is over")
        if self.phase is Phase.RUNNING and self._queued and self._writing is None:
            raise AssertionError("a segment waits for nothing")
        if len(self._turns) > self._unread:
            raise AssertionError("segments are miscounted")

    # --- parts --------------------------------------------------------------------------------

    @property
    def _first(self) -> str:
        return self.plan.path[0].name

    def _turn(self, uid: str, epoch: int) -> _Turn | None:
        """The segment that a unit works for: the session's own says it by the epoch."""
        return self._turns.get(epoch if uid == self._unit else segment_of(root_of(uid)))

    def _begin_next(self) -> None:
        if self.phase is Phase.RUNNING and self._writing is None and self._queued:
            turn = self._writing = self._queued.popleft()
            turn.phase = Phase.RUNNING
            turn.flow.start([turn.prompt])
            self.route.observers.began(turn.flow)

    def _units_downstream(self, turns: Iterable[_Turn]) -> dict[str, list[str]]:
        units: dict[str, list[str]] = {}
        for turn in turns:
            for stage, uids in turn.flow.uids().items():
                if stage != self._first:
                    units.setdefault(stage, []).extend(uids)
        return units

    def _interrupt(self, turns: Sequence[_Turn]) -> None:
        """End these segments where they are under way; those that have not begun never will."""
        self._queued.clear()
        units = self._units_downstream(turns)
        commands: dict[str, Callable[[int], Abort | Interrupt]] = {
            stage: partial(Abort, uids) for stage, uids in units.items()
        }
        if self._writing in turns:
            commands[self._first] = partial(Interrupt, self._unit)
        for turn in turns:
            turn.phase = Phase.ENDING
        self.route.ask(commands, lambda: self._interrupted(turns))

    def _interrupted(self, turns: Sequence[_Turn]) -> None:
        for turn in turns:
            if turn.phase is Phase.ENDING:
                self._finish(turn, "interrupt")
        if self._writing in turns:
            self._writing = None
        self._begin_next()

    def _finish(self, turn: _Turn, reason: str | None = None) -> None:
        """The one outcome of a segment."""
        reply = turn.flow.reply(reason)
        self._emit(turn, Finished(reply))
        self._forget(turn, reply.finish_reason, self.cause)

    def _emit(self, turn: _Turn, event: OmniEvent) -> None:
        self.events.put_nowait(SessionEvent(turn.number, event))

    def _forget(
        self, turn: _Turn, outcome: str, cause: str | None, message: str | None = None
    ) -> None:
        if turn.flow.units:  # it had begun
            ended = self.route.observers.ended
            ended(turn.flow, self.route.replicas, outcome, cause, message)
        turn.phase = Phase.TERMINAL
        turn.ended.set()
        del self._turns[turn.number]

    def _close(self) -> None:
        """No stage holds anything of the session."""
        self._queued.clear()
        for turn in list(self._turns.values()):
            if self.error is None:
                self._finish(turn, "abort")
            else:
                self._forget(turn, "error", self.error.code, str(self.error))
        self.phase = Phase.TERMINAL
        if self._timer is not None:
            self._timer.cancel()
        self._tell()
        self.ended.set()
        self._over(self)

    def _tell(self) -> None:
        """Tell that nothing follows, and the error before it, if that has not been done."""
        if self._told:
            return
        self._told = True
        if self.error is not None:
            self.events.put_nowait(self.error)
        self.events.put_nowait(None)


def _end_of_session(stage: str, output: Output) -> AntiphonError | None:
    """Why the session's own unit ended, which it does by no segment's end."""
    if output.error is not None:
        return from_wire(output.error)
    if output.finish is not None:
        return StageError(f"stage '{stage}' ended the session with reason '{output.finish}'")
    return None
