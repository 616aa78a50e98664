"""What can be asked of a pipeline beside requests: how it is, to sleep, to wake, what it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from antiphon.errors import AntiphonError, InvalidRequestError, ShutdownError
from antiphon.observe.record import Observer
from antiphon.orchestrator.admission import Admission
from antiphon.orchestrator.clients import Frames, StageClient, WatchedClient
from antiphon.orchestrator.questions import Answer, Questions
from antiphon.orchestrator.replica import Replica, ReplicaState, StageState
from antiphon.orchestrator.router import Router
from antiphon.orchestrator.stages import StageSet
from antiphon.stage.messages import (
    Acknowledged,
    Command,
    Event,
    Inspect,
    Inspection,
    Measured,
    Sleep,
    Wake,
)
from antiphon.stage.spec import StageSpec

MEMORY = frozenset({"weights", "kv_cache"})
"""vLLM's names of what a stage gives back when it sleeps."""

OnNotice = Callable[[str], None]
"""Told in one line what an operator wants to know: a replica was lost, serves again, stays down."""


class Administration:
    """The base of `AsyncOmni`: its stages, and those that are asked by name of the question.

    What is given by replica has names: the stage's, with "/1" behind it for its second replica, and
    so on.
    """

    def __init__(self, router: Router, on_notice: OnNotice | None = None) -> None:
        self._router = router
        self._notify = on_notice or (lambda line: None)
        self._closed = False
        self._to_sleep: frozenset[str] = frozenset()  # memory that all are to have given back
        self._sleep_level = 1
        self._asleep: dict[Replica, frozenset[str]] = {}  # what each has given back, if anything
        self._restarting: dict[Replica, asyncio.Lock] = {}  # one at a time
        self._questions = Questions()
        self._specs: dict[str, StageSpec] = {}
        self._replicas: dict[Replica, StageSpec] = {}
        self._stages: StageSet | None = None
        self._ready = False  # all of them serve

    def observe(self, observer: Observer) -> None:
        """Have `observer` told of every request from now on."""
        self._router.observers.add(observer)

    @property
    def num_running(self) -> int:
        """Requests that have been submitted and have no outcome yet, or that a stage still holds
        something of.
        """
        return len(self._router)

    @property
    def stage_states(self) -> dict[str, StageState]:
        """How each stage that was to start is: truthful at any time."""
        found: dict[str, list[ReplicaState]] = {}
        for replica in self._replicas:
            found.setdefault(replica.stage, []).append(self._state(replica))
        return {stage: StageState(tuple(states)) for stage, states in found.items()}

    def _state(self, replica: Replica) -> ReplicaState:
        if self._closed:
            return ReplicaState(replica.number, "gone", "the pipeline is closed")
        seats = {} if self._stages is None else self._stages.seats
        seat = seats.get(replica)
        if seat is None or not (self._ready or seat.life.restarts):
            return ReplicaState(replica.number, "starting")
        draining = replica in self._router.draining
        return seat.state(self._router.clock(), asleep=replica in self._asleep, draining=draining)

    @property
    def admission(self) -> Admission:
        """How many requests each stage has, and may have."""
        return self._router.admission

    @property
    def stage_pids(self) -> dict[str, int]:
        """Process ids by replica; empty when stages run in the caller's process."""
        clients = {} if self._stages is None else self._stages.clients
        return {str(replica): c.pid for replica, c in clients.items() if c.pid is not None}

    # --- questions ----------------------------------------------------------------------------

    async def sleep(self, level: int = 1) -> dict[str, int]:
        """Have every stage give memory back; bytes freed by replica. Requests wait until `wake`.

        A replica that is being started again sleeps as soon as it serves. An error is that of one
        replica, and the others sleep.
        """
        if level not in (1, 2):
            raise InvalidRequestError(f"there is no sleep level {level}; use 1 or 2")
        self._require_all()
        self._to_sleep, self._sleep_level = MEMORY, level
        answers = await self._ask(lambda token: Sleep(level, token), self._sleeps)
        return {name: a.bytes_freed for name, a in answers.items() if isinstance(a, Acknowledged)}

    def _sleeps(self, replica: Replica) -> None:
        self._asleep[replica] = MEMORY

    async def wake(self, tags: list[str] | None = None) -> None:
        """Undo `sleep`. An error is that of one replica, and the others wake.

        Whatever is being started again meanwhile will be awake.
        """
        self._serving()
        woken = MEMORY if tags is None else frozenset(tags)
        self._to_sleep -= woken
        await self._ask(lambda token: Wake(tags, token), partial(self._wakes, woken))

    def _wakes(self, woken: frozenset[str], replica: Replica) -> None:
        if still := self._asleep.pop(replica, frozenset()) - woken:
            self._asleep[replica] = still

    async def inspect(self) -> dict[str, Inspection]:
        """Check every store of every stage; what each replica holds."""
        self._router.check_integrity()
        self._questions.check_integrity()
        self._require_all()
        answers = await self._ask(Inspect)
        return {name: a for name, a in answers.items() if isinstance(a, Inspection)}

    async def measure(self, timeout_s: float = 1.0) -> dict[Replica, Measured]:
        """Figures of the replicas, between two steps of each; nothing is checked.

        One that runs no more or does not answer in time is left out: this neither hangs nor fails.
        """
        return await self._questions.measure(self._alive() if self._ready else {}, timeout_s)

    @property
    def late_outputs(self) -> int:
        """Outputs of stages that belonged to nothing any more."""
        return self._router.late_outputs

    def _require_all(self) -> None:
        """Raise ShutdownError or StageDiedError unless every stage has a process to ask."""
        self._serving()
        asked = {replica.stage for replica in self._alive()}
        for name in self._specs:
            if name not in asked:
                self._router.require(name)

    async def _ask(
        self,
        command: Callable[[int], Command],
        done: Callable[[Replica], None] = lambda replica: None,
    ) -> dict[str, Answer]:
        answers = await self._questions.ask(self._alive(), command, done)
        return {str(replica): answer for replica, answer in answers.items()}

    def _alive(self) -> Mapping[Replica, StageClient]:
        clients = {} if self._stages is None else self._stages.clients
        return {r: c for r, c in clients.items() if r not in self._router.gone}

    # --- replicas -----------------------------------------------------------------------------

    async def drain(self, stage: str, replica: int = 0) -> None:
        """Give a replica no more requests; returns when those that it has are over.

        Raises InvalidRequestError for one that is not there.
        """
        await self._router.drain(self._known(stage, replica))

    def rejoin(self, stage: str, replica: int = 0) -> None:
        """Undo `drain`. Raises InvalidRequestError for one that is not there."""
        self._router.rejoin(self._known(stage, replica))

    async def restart(self, stage: str, replica: int = 0) -> None:
        """Drain a replica, end its process and start another; returns when that serves.

        Raises InvalidRequestError for one that is not there or cannot be started again,
        StageDiedError or StageStartError if it does not come back.
        """
        known = self._known(stage, replica)
        if not isinstance(self._serving().clients[known], WatchedClient):
            raise InvalidRequestError("stages in the caller's process cannot be started again")
        async with self._restarting.setdefault(known, asyncio.Lock()):
            drained = known in self._router.draining  # then it stays so
            try:
                await self._router.drain(known)
                await self._serving().restart(known)
            finally:
                if not drained:
                    self._router.rejoin(known)

    def _known(self, stage: str, number: int) -> Replica:
        replica = Replica(stage, number)
        if replica not in self._replicas:
            known = ", ".join(map(str, self._replicas)) or "none"
            raise InvalidRequestError(f"there is no replica {replica}; there is {known}")
        return replica

    # --- what stages say ----------------------------------------------------------------------

    def on_event(self, replica: Replica, event: Event, frames: Frames) -> None:
        """For the stages: what a replica reported."""
        if isinstance(event, Acknowledged | Inspection | Measured):
            self._questions.answered(replica, event)
        else:
            self._router.on_event(replica, event, frames)

    def on_gone(self, replica: Replica, why: AntiphonError, restart_in_s: float | None) -> None:
        """For the stages: a replica's process has ended."""
        self._router.on_gone(replica, why)
        self._questions.lost(replica, why)
        self._asleep.pop(replica, None)
        if restart_in_s is None:
            self._notify(f"stage {replica} is gone, and stays down: {why}")
        else:
            self._notify(f"stage {replica} starts again in {restart_in_s:g} s: {why}")

    def on_back(self, replica: Replica) -> None:
        """For the stages: another process serves in the place of one that has ended."""
        self._router.on_back(replica)
        self._notify(f"stage {replica} serves again")
        if self._to_sleep and self._stages is not None:
            client = self._stages.clients[replica]
            level = self._sleep_level
            self._questions.tell(replica, client, lambda token: Sleep(level, token), self._sleeps)
            if awake := MEMORY - self._to_sleep:
                wake = partial(Wake, sorted(awake))
                self._questions.tell(replica, client, wake, partial(self._wakes, awake))

    def _serving(self) -> StageSet:
        if self._stages is None or not self._ready:
            raise ShutdownError("the pipeline is not running; call start() first")
        return self._stages
