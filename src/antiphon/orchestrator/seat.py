"""One replica's place: the process that serves there now, and those that will."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from antiphon.core.supervision import Life, LifePhase, Verdict, Watch
from antiphon.errors import AntiphonError, StageDiedError, StageStartError
from antiphon.orchestrator.clients import WatchedClient
from antiphon.orchestrator.replica import Replica, ReplicaState, Word
from antiphon.orchestrator.timers import Timer
from antiphon.stage.messages import Ping, Ready
from antiphon.stage.spec import StageSpec


@dataclass(slots=True, eq=False)
class Seat:
    """`first` is done when its first process serves, or has failed to."""

    replica: Replica
    spec: StageSpec
    life: Life
    first: asyncio.Future[Ready]
    generation: int = 0  # of its processes; what an earlier one says counts no more
    watch: Watch | None = None  # of the process that serves
    began_s: float = 0.0  # clock value at which the process was started
    due_s: float | None = None  # clock value at which the next one is
    timer: Timer | None = None  # until the next one, or for the start that goes on
    back: list[asyncio.Future[None]] = field(default_factory=list)  # who waits for it to serve

    def look(self, client: WatchedClient) -> None:
        """A tick of the watch: ask for a sign of life, and end a process that gives none."""
        watch = self.watch
        if watch is None or self.life.phase is not LifePhase.READY:
            return
        if watch.tick():
            client.send(Ping())
        match watch.verdict:
            case Verdict.DEAD:
                why = f"gave no sign of life for {watch.silent_s:.3g} s"
            case Verdict.STUCK:
                why = f"has been at one step for {watch.busy_s:.0f} s"
            case _:
                return
        self.watch = None
        client.kill(StageDiedError(f"stage '{self.replica}' {why}, and its process was ended"))

    def set_timer(self, timer: Timer | None) -> None:
        """In place of the one that runs, if one does."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = timer

    def settle(self, why: AntiphonError | None = None) -> None:
        """It serves again, or there will be no other process: whoever waits for it is told."""
        waiters, self.back = self.back, []
        for waiter in waiters:
            if waiter.done():
                continue
            if why is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(type(why)(str(why)))  # each raises one of its own

    def state(self, now: float, *, asleep: bool, draining: bool) -> ReplicaState:
        """How it is, in one word and a reason."""
        life = self.life
        number, restarts = self.replica.number, life.restarts
        match life.phase:
            case LifePhase.READY:
                if self.watch is not None and self.watch.verdict is Verdict.SILENT:
                    why = f"it has not answered for {self.watch.silent_s:.0f} s"
                    return ReplicaState(number, "silent", why, restarts)
                word: Word = "draining" if draining else "asleep" if asleep else "ready"
                return ReplicaState(number, word, None, restarts)
            case LifePhase.STARTING:
                word = "restarting" if restarts else "starting"
                return ReplicaState(number, word, life.why, restarts, 0.0 if restarts else None)
            case LifePhase.LOST | LifePhase.STOPPED:
                due_s = 0.0 if self.due_s is None else max(0.0, self.due_s - now)
                return ReplicaState(number, "restarting", life.why, restarts, due_s)
            case _:
                return ReplicaState(number, "gone", life.why, restarts)

    def late(self, timeout_s: float) -> AntiphonError:
        """What a process that was started again and is not ready in time is ended with."""
        return StageStartError(
            f"stage '{self.replica}' was not ready {timeout_s:g} s after it was started again"
        )
