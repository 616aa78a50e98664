"""Live requests, and the one path on which each of them ends.

Runs on the event loop's thread. Routing happens here and nowhere else (AR-INV-003); each request
gets exactly one terminal outcome: a reply, or one typed error.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from antiphon.errors import (
    AntiphonError,
    DeadlineExceededError,
    DuplicateRequestError,
    ShutdownError,
    StageDiedError,
)
from antiphon.orchestrator.api import Finished, OmniEvent, OmniRequest
from antiphon.orchestrator.clients import Frames, StageClient
from antiphon.orchestrator.flow import Flow, FlowPlan, root_of
from antiphon.payload.ref import Ref
from antiphon.stage.messages import (
    Abort,
    Aborted,
    Command,
    Deliver,
    Discard,
    Event,
    Output,
    Step,
    Used,
)


class Phase(enum.Enum):
    """RUNNING until the last unit finished, or until the request is being ended on every stage."""

    RUNNING = enum.auto()
    ENDING = enum.auto()
    TERMINAL = enum.auto()


@dataclass(slots=True, eq=False)
class LiveRequest:
    """One request; `events` ends with one terminal item: a `Finished` or an error."""

    label: str | None
    flow: Flow
    events: asyncio.Queue[OmniEvent | AntiphonError]
    phase: Phase = Phase.RUNNING
    outcome: AntiphonError | None = None  # why it is being ended; None: aborted
    token: int | None = None  # of the abort that the stages acknowledge
    awaiting: set[str] = field(default_factory=set)  # stages that have not acknowledged yet
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    timer: asyncio.TimerHandle | None = None

    @property
    def uid(self) -> str:
        return self.flow.plan.uid


class Router:
    """All live requests of one pipeline."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clients: Mapping[str, StageClient] = {}
        self._clock = clock
        self._live: dict[str, LiveRequest] = {}
        self._labels: dict[str, LiveRequest] = {}
        self._aborts: dict[int, LiveRequest] = {}
        self._gone: dict[str, AntiphonError] = {}
        self._under_way: dict[str, dict[str, str]] = {}  # consumer: key of a chunk: its producer
        self._outgoing: dict[str, list[tuple[str, Ref]]] = {}  # of the step in hand, by consumer
        self._numbers = itertools.count()
        self._run = secrets.token_hex(4)
        self.late_outputs = 0

    def attach(self, clients: Mapping[str, StageClient]) -> None:
        """The stages, once they have been started."""
        self._clients = clients

    def new_uid(self) -> str:
        """The runtime's own id; nothing of the caller's is in it."""
        return f"{self._run}{next(self._numbers):x}"

    # --- requests -----------------------------------------------------------------------------

    def submit(self, plan: FlowPlan, prompts: list[list[int]], request: OmniRequest) -> LiveRequest:
        """Start a request on every stage of its path.

        Raises DuplicateRequestError for a label that is alive, StageDiedError for a stage that is
        gone.
        """
        label = request.request_id
        if label is not None and label in self._labels:
            raise DuplicateRequestError(f"request '{label}' is still running; choose another id")
        for stage in plan.path:
            self.require(stage.name)
        flow = Flow(plan, self._send, self._deliver, self._clock)
        live = LiveRequest(label, flow, asyncio.Queue())
        live.flow.start(prompts)
        self._live[plan.uid] = live
        if label is not None:
            self._labels[label] = live
        if request.deadline_s is not None:
            live.timer = asyncio.get_running_loop().call_later(
                request.deadline_s, self._on_deadline, live, request.deadline_s
            )
        return live

    def require(self, stage: str) -> None:
        """Raise StageDiedError if the stage is gone."""
        if (why := self._gone.get(stage)) is not None:
            raise StageDiedError(f"stage '{stage}' is not running: {why}")

    async def abort(self, live: LiveRequest) -> None:
        """End a request; returns when every stage has acknowledged. Harmless if it has ended."""
        self._end(live, None)
        await live.ended.wait()

    def find(self, label: str) -> LiveRequest | None:
        """The live request with this caller's id."""
        return self._labels.get(label)

    async def close(self) -> None:
        """Fail everything that is alive, and wait until no stage holds any of it."""
        requests = list(self._live.values())
        for live in requests:
            self._end(live, ShutdownError("the pipeline was closed while the request ran"))
        await asyncio.gather(*(live.ended.wait() for live in requests))

    def abandon(self) -> None:
        """The stages have been stopped: who still waits for an acknowledgement has its outcome."""
        for live in list(self._live.values()):
            self._end(live, ShutdownError("the pipeline was closed while the request ran"))
            if live.phase is Phase.ENDING:
                self._close(live)

    def __len__(self) -> int:
        return len(self._live)

    def check_integrity(self) -> None:
        """Raise AssertionError if the tables disagree."""
        if any(live.phase is Phase.TERMINAL for live in self._live.values()):
            raise AssertionError("a request outlived its outcome")
        if not {id(r) for r in self._labels.values()} <= {id(r) for r in self._live.values()}:
            raise AssertionError("a label outlived its request")
        if not {id(r) for r in self._aborts.values()} <= {id(r) for r in self._live.values()}:
            raise AssertionError("an abort outlived its request")

    # --- events -------------------------------------------------------------------------------

    def on_event(self, stage: str, event: Event, frames: Frames) -> None:
        """What a stage reported."""
        match event:
            case Step():
                for edge, keys in event.used.items():
                    self._on_used(stage, edge, keys)
                for output in event.outputs:
                    self._on_output(stage, output, frames)
                for ref in event.refs:
                    self._on_ref(stage, ref)
                self._flush()
            case Aborted():
                self._on_aborted(stage, event)
            case _:
                pass

    def on_gone(self, stage: str, why: AntiphonError) -> None:
        """A stage's process has ended: requests bound to it fail, the others go on."""
        self._gone[stage] = why
        for key, producer in self._under_way.pop(stage, {}).items():
            self._send(producer, Discard([key]))  # it may still lie where it was stored
        for live in list(self._live.values()):
            if stage in live.flow.units:
                self._end(live, type(why)(str(why)))  # each caller raises one of its own
                self._acknowledged(live, stage)

    def _on_output(self, stage: str, output: Output, frames: Frames) -> None:
        live = self._live.get(root_of(output.uid))
        if live is None or live.phase is not Phase.RUNNING:
            self.late_outputs += live is None
            return
        try:
            for event in live.flow.on_output(stage, output, frames):
                live.events.put_nowait(event)
        except AntiphonError as error:
            self._end(live, error)
            return
        if live.flow.done:
            self._finish(live, Finished(live.flow.reply()))

    def _on_ref(self, stage: str, ref: Ref) -> None:
        live = self._live.get(root_of(ref.uid))
        if live is None or live.phase is not Phase.RUNNING:
            self._drop(stage, ref)
            return
        try:
            live.flow.on_ref(stage, ref)
        except AntiphonError as error:
            self._drop(stage, ref)
            self._end(live, error)

    def _drop(self, stage: str, ref: Ref) -> None:
        """A chunk of a request that is ending: nobody will take it."""
        if ref.key is not None:
            self._send(stage, Discard([ref.key]))

    def _on_used(self, stage: str, edge: str, keys: list[str]) -> None:
        """`stage` needs these chunks no more: their producer has room for others."""
        delivered = self._under_way.get(stage, {})
        known = [(delivered.pop(key), key) for key in keys if key in delivered]
        for producer in dict.fromkeys(producer for producer, _ in known):
            self._send(producer, Used(edge, [key for p, key in known if p == producer]))

    def _on_aborted(self, stage: str, event: Aborted) -> None:
        live = self._aborts.get(event.token)
        if live is not None:
            self._acknowledged(live, stage)

    def _on_deadline(self, live: LiveRequest, deadline_s: float) -> None:
        self._end(live, DeadlineExceededError(f"the request took longer than {deadline_s:g} s"))

    # --- the one way to end -------------------------------------------------------------------

    def _end(self, live: LiveRequest, error: AntiphonError | None) -> None:
        """Tell every stage on the path; the outcome follows when all have acknowledged."""
        if live.phase is not Phase.RUNNING:
            return
        live.phase = Phase.ENDING
        live.outcome = error
        token = live.token = next(self._numbers)
        self._aborts[token] = live
        units = live.flow.uids()
        live.awaiting = {stage for stage in units if stage not in self._gone}
        for stage in list(live.awaiting):
            self._send(stage, Abort(units[stage], token))
        if not live.awaiting:
            self._close(live)

    def _acknowledged(self, live: LiveRequest, stage: str) -> None:
        if live.phase is Phase.ENDING:
            live.awaiting.discard(stage)
            if not live.awaiting:
                self._close(live)

    def _close(self, live: LiveRequest) -> None:
        outcome = live.outcome
        self._finish(live, Finished(live.flow.reply("abort")) if outcome is None else outcome)

    def _finish(self, live: LiveRequest, outcome: Finished | AntiphonError) -> None:
        live.phase = Phase.TERMINAL
        del self._live[live.uid]
        if live.label is not None:
            del self._labels[live.label]
        if live.token is not None:
            del self._aborts[live.token]
        if live.timer is not None:
            live.timer.cancel()
        live.events.put_nowait(outcome)
        live.ended.set()

    def _deliver(self, producer: str, consumer: str, uid: str, ref: Ref) -> None:
        """Forward a ref; those of one step travel in one message per consumer."""
        if ref.key is not None:
            if consumer in self._gone:
                self._send(producer, Discard([ref.key]))
                return
            self._under_way.setdefault(consumer, {})[ref.key] = producer
        self._outgoing.setdefault(consumer, []).append((uid, ref))

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, {}
        for stage, items in outgoing.items():
            self._send(stage, Deliver(items))

    def _send(self, stage: str, command: Command) -> None:
        if stage not in self._gone:
            self._clients[stage].send(command)
