"""Live requests and sessions: what stages report finds the one that it concerns.

Runs on the event loop's thread. Routing happens here and nowhere else (AR-INV-003).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import partial

from antiphon.errors import (
    AntiphonError,
    DuplicateRequestError,
    InvalidRequestError,
    ShutdownError,
)
from antiphon.orchestrator.admission import Admission
from antiphon.orchestrator.api import OmniRequest
from antiphon.orchestrator.clients import Frames, StageClient
from antiphon.orchestrator.dispatch import Dispatch
from antiphon.orchestrator.flow import Flow, FlowPlan
from antiphon.orchestrator.live import LiveRequest, Phase
from antiphon.orchestrator.preparation import deadline_passed
from antiphon.orchestrator.recording import Observers
from antiphon.orchestrator.replica import Replica
from antiphon.orchestrator.route import Route
from antiphon.orchestrator.segments import LiveSession, SessionPlan
from antiphon.orchestrator.timers import Later, on_loop
from antiphon.orchestrator.uids import root_of, session_of
from antiphon.payload.ref import Ref
from antiphon.pipeline.entry import AnyPrompt
from antiphon.pipeline.topology import Stage
from antiphon.stage.messages import Aborted, Event, Interrupted, Output, Step

Live = LiveRequest | LiveSession
logger = logging.getLogger(__name__)


Reclaim = Callable[[Collection[str]], object]
"""Removes the payloads of these units that a replica which has ended may have left."""


class Router:
    """All live requests and sessions of one pipeline."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        admission: Admission | None = None,
        reclaim: Reclaim = lambda uids: None,
        later: Later = on_loop,
    ) -> None:
        self.admission = Admission({}, clock) if admission is None else admission
        self._reclaim = reclaim
        self._dispatch = Dispatch(clock, later)
        self._live: dict[str, Live] = {}
        self._labels: dict[str, Live] = {}
        self._numbers = itertools.count()
        self._run = secrets.token_hex(4)
        self._drained: list[asyncio.Future[None]] = []  # of those who wait for an end
        self.late_outputs = 0

    def attach(self, clients: Mapping[Replica, StageClient]) -> None:
        """The stages, once they have been started."""
        self._dispatch.attach(clients)

    def new_uid(self) -> str:
        """The runtime's own id; nothing of the caller's is in it."""
        return f"{self._run}{next(self._numbers):x}"

    # --- requests -----------------------------------------------------------------------------

    def submit(
        self,
        plan: FlowPlan,
        prompts: Sequence[AnyPrompt],
        request: OmniRequest,
        began_s: float | None = None,
    ) -> LiveRequest:
        """Start a request on every stage of its path.

        Its deadline runs from `began_s` on, a time of the clock; None is now. Raises
        DuplicateRequestError for a label that is alive, StageDiedError for a stage that is gone,
        OverloadedError.
        """
        self.admit(request.request_id, plan.path)
        route = self._route(plan.path)
        flow = Flow(plan, route.send, route.deliver, route.clock)
        live = LiveRequest(request.request_id, flow, route, self._over)
        live.start(prompts)
        self._enter(live)
        if request.deadline_s is not None:
            gone_s = 0.0 if began_s is None else route.clock() - began_s
            left_s = max(0.0, request.deadline_s - gone_s)
            live.set_timer(left_s, partial(live.end, deadline_passed(request)))
        return live

    def open_session(self, plan: SessionPlan) -> LiveSession:
        """Enter a session; its stages hear of it with its first segment. Raises as `submit`."""
        self.admit(plan.label, plan.path)
        live = LiveSession(plan, self._route(plan.path), self._over)
        self._enter(live)
        return live

    def _route(self, path: tuple[Stage, ...]) -> Route:
        choose = self._dispatch.choose
        return Route(self._dispatch, {stage.name: choose(stage.name) for stage in path})

    @contextmanager
    def preparing(self, label: str | None, path: tuple[Stage, ...]) -> Iterator[None]:
        """Around what comes before the submission; the request counts from then on.

        Raises as `admit`.
        """
        self.admit(label, path)
        with self.admission.preparing([stage.name for stage in path]):
            yield

    def admit(self, label: str | None, path: tuple[Stage, ...]) -> None:
        """Raise what keeps a request from beginning now: DuplicateRequestError, StageDiedError,
        OverloadedError.
        """
        if label is not None and label in self._labels:
            raise DuplicateRequestError(f"request '{label}' is still running; choose another id")
        for stage in path:
            self.require(stage.name)
        self.admission.check(stage.name for stage in path)

    def _enter(self, live: Live) -> None:
        self._live[live.uid] = live
        self.admission.enter(live.route.stages)
        self._dispatch.bind(live.route.replicas.values())
        if live.label is not None:
            self._labels[live.label] = live

    def _over(self, live: Live) -> None:
        del self._live[live.uid]
        self.admission.leave(live.route.stages)
        self._dispatch.unbind(live.route.replicas.values())
        if live.label is not None:
            del self._labels[live.label]
        self._wake_drained()
        if live.route.severed:
            self._remove_payloads(live)

    def _remove_payloads(self, live: Live) -> None:
        """What a replica that has ended may have left. If it cannot be, it goes with the run."""
        try:
            self._reclaim(live.units())
        except (OSError, AntiphonError):
            logger.exception("payloads of a request could not be removed")

    def require(self, stage: str) -> None:
        """Raise StageDiedError if the stage is gone."""
        self._dispatch.require(stage)

    async def abort(self, live: Live, cause: str = "request") -> None:
        """End a request; returns when every stage has acknowledged. Harmless if it has ended."""
        live.end(None, cause)
        await live.ended.wait()

    def find(self, label: str) -> Live | None:
        """The live request or session with this caller's id."""
        return self._labels.get(label)

    async def close(self) -> None:
        """Fail everything that is alive, and wait until no stage holds any of it."""
        everything = list(self._live.values())
        self._shut_down()
        await asyncio.gather(*(live.ended.wait() for live in everything))

    def abandon(self) -> None:
        """The stages have been stopped: who still waits for an acknowledgement has its outcome."""
        self._shut_down()
        self._dispatch.acknowledgements.abandon()

    def _shut_down(self) -> None:
        for live in list(self._live.values()):
            live.end(ShutdownError("the pipeline was closed while the request ran"))

    def __len__(self) -> int:
        return len(self._live)

    @property
    def clock(self) -> Callable[[], float]:
        return self._dispatch.clock

    @property
    def observers(self) -> Observers:
        return self._dispatch.observers

    @property
    def gone(self) -> Mapping[Replica, AntiphonError]:
        """The replicas whose processes have ended, and why."""
        return self._dispatch.gone

    @property
    def draining(self) -> AbstractSet[Replica]:
        """The replicas that get no requests."""
        return self._dispatch.draining

    @property
    def chunks_under_way(self) -> int:
        """Chunks that consumers have been given and have not used up."""
        return len(self._dispatch.deliveries)

    def check_integrity(self) -> None:
        """Raise AssertionError if the tables disagree."""
        if any(live.phase is Phase.TERMINAL for live in self._live.values()):
            raise AssertionError("a request outlived its outcome")
        if not {id(r) for r in self._labels.values()} <= {id(r) for r in self._live.values()}:
            raise AssertionError("a label outlived its request")
        bound = Counter(r for live in self._live.values() for r in live.route.replicas.values())
        if +self._dispatch.live != bound:
            raise AssertionError("a replica is counted for a request that is over")
        if len(self._dispatch.acknowledgements) and not self._live:
            raise AssertionError("an abort outlived its request")
        for live in self._live.values():
            live.check_integrity()
        self.admission.check_integrity()
        self._dispatch.deliveries.check_integrity()
        self._dispatch.acknowledgements.check_integrity()

    # --- events -------------------------------------------------------------------------------

    def on_event(self, replica: Replica, event: Event, frames: Frames) -> None:
        """What a replica reported."""
        match event:
            case Step():
                for edge, keys in event.used.items():
                    self._dispatch.deliveries.used(replica, edge, keys)
                for output in event.outputs:
                    self._on_output(replica, output, frames)
                for ref in event.refs:
                    self._on_ref(replica, ref)
                self._dispatch.deliveries.flush()
            case Aborted() | Interrupted():
                self._dispatch.acknowledgements.answered(replica, event.token)
            case _:
                pass

    def on_gone(self, replica: Replica, why: AntiphonError) -> None:
        """A replica's process has ended: requests that need it fail, the others go on."""
        self._dispatch.lost(replica, why)
        for live in list(self._live.values()):
            if live.route.replicas.get(replica.stage) == replica:
                live.route.severed = True
                if live.needs(replica.stage):
                    live.end(type(why)(str(why)))  # each caller raises one of its own
        self._dispatch.acknowledgements.lost(replica)

    def on_back(self, replica: Replica) -> None:
        """Another process serves in the place of one that has ended."""
        self._dispatch.joined(replica)

    async def drain(self, replica: Replica) -> None:
        """Give a replica no more requests; returns when it has none.

        Raises InvalidRequestError if it is told to `rejoin` before that.
        """
        self._dispatch.draining.add(replica)
        while self._dispatch.live[replica]:
            if replica not in self._dispatch.draining:
                raise InvalidRequestError(f"replica {replica} was told to rejoin meanwhile")
            waiter = asyncio.get_running_loop().create_future()
            self._drained.append(waiter)
            await waiter

    def rejoin(self, replica: Replica) -> None:
        """Undo `drain`."""
        self._dispatch.draining.discard(replica)
        self._wake_drained()

    def _wake_drained(self) -> None:
        waiters, self._drained = self._drained, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _find(self, uid: str) -> Live | None:
        """Whose unit this is: a request's own, or one of a session or its segments."""
        root = root_of(uid)
        live = self._live.get(root)
        if live is None:
            live = self._live.get(session_of(root))
            return live if isinstance(live, LiveSession) else None
        return live

    def _on_output(self, replica: Replica, output: Output, frames: Frames) -> None:
        live = self._find(output.uid)
        if live is None or not live.on_output(replica.stage, output, frames):
            self.late_outputs += 1

    def _on_ref(self, replica: Replica, ref: Ref) -> None:
        live = self._find(ref.uid)
        if live is None or not live.on_ref(replica.stage, ref):
            self._dispatch.deliveries.discard(replica, ref)
