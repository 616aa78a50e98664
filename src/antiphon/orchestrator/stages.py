"""Starting and stopping the stages of a pipeline, and starting again what has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from antiphon.connector.runs import RunLock, reclaim_dead_runs
from antiphon.core.supervision import Life, LifePhase, RestartPolicy, Watch
from antiphon.errors import AntiphonError, ShutdownError, StageDiedError, StageStartError
from antiphon.orchestrator.clients import Frames, OnEvent, OnGone, StageClient, WatchedClient
from antiphon.orchestrator.local import LocalStages
from antiphon.orchestrator.process import ProcessStage
from antiphon.orchestrator.replica import Replica
from antiphon.orchestrator.seat import Seat
from antiphon.orchestrator.tasks import READY, Progress, to_the_end
from antiphon.orchestrator.timers import Later, Timer, on_loop
from antiphon.pipeline.supervision import Supervision
from antiphon.stage.messages import Event, Pong, Ready, Starting
from antiphon.stage.spec import StageSpec

MakeClient = Callable[[StageSpec, OnEvent, OnGone], StageClient]
"""Starts a stage in some way of its own; `Ready` or `Failed` has to follow as an event."""

STOP_TIMEOUT_S = 10.0  # per attempt: asked, then SIGTERM, then SIGKILL
_LONGEST_TICK_S = 2.0
_TICKS = 10  # within the silence that is allowed


class Listener(Protocol):
    """Who is told of what happens. Called on the event loop that `start` ran on."""

    def on_event(self, replica: Replica, event: Event, frames: Frames) -> None:
        """What a replica reported."""
        ...

    def on_gone(self, replica: Replica, why: AntiphonError, restart_in_s: float | None) -> None:
        """Its process has ended; None: there will be no other."""
        ...

    def on_back(self, replica: Replica) -> None:
        """Another process serves in its place."""
        ...


class StageSet:
    """The replicas of all stages, each kept alive.

    `make_client` starts a replica in a way of its own, else it has a process. Those in the caller's
    process (`in_process`) end together, for good.
    """

    def __init__(
        self,
        specs: Mapping[Replica, StageSpec],
        listener: Listener,
        *,
        run: str,
        supervision: Supervision,
        in_process: bool = False,
        on_progress: Progress,
        make_client: MakeClient | None = None,
        clock: Callable[[], float] = time.monotonic,
        later: Later = on_loop,
    ) -> None:
        self._specs = specs
        self._listener = listener
        self._run = run
        self._supervision = supervision
        self._in_process = in_process
        self._on_progress = on_progress
        self._make_client = make_client or ProcessStage
        self._clock = clock
        self._later = later
        self._start_timeout_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock: RunLock | None = None
        self._watching: Timer | None = None
        self._ending: set[asyncio.Task[None]] = set()  # of processes that have ended
        self._started = False
        self._stopped = False
        self._seats: dict[Replica, Seat] = {}
        self.clients: dict[Replica, StageClient] = {}

    @property
    def seats(self) -> Mapping[Replica, Seat]:
        return self._seats

    # --- start and stop -----------------------------------------------------------------------

    async def start(self, timeout_s: float) -> None:
        """Start all in parallel and wait for them; `timeout_s` 0 waits for ever.

        Raises StageStartError, or the error that a stage reported; the caller then calls `stop`.
        """
        self._loop = loop = asyncio.get_running_loop()
        self._start_timeout_s = timeout_s
        reclaim_dead_runs()
        self._lock = RunLock(self._run)
        # Engines of one process cannot be started again one by one.
        policy = RestartPolicy(restarts=0) if self._in_process else self._supervision.policy
        for replica, spec in self._specs.items():
            self._seats[replica] = Seat(replica, spec, Life(policy), loop.create_future())
        if self._in_process:
            self._begin_local()
        else:
            for seat in self._seats.values():
                self._begin(seat)
        ready = {replica: seat.first for replica, seat in self._seats.items()}
        try:
            async with asyncio.timeout(timeout_s or None):
                await asyncio.gather(*ready.values())
        except TimeoutError:
            # The time running out has cancelled the futures of those that are late.
            late = ", ".join(f"'{r}'" for r, future in ready.items() if future.cancelled())
            raise StageStartError(
                f"not ready after {timeout_s:g} s: stage {late}; "
                f"raise start_timeout_s or look at the model"
            ) from None
        self._started = True
        self._watch()

    async def stop(self) -> None:
        """End every stage and remove what the run left in shared memory. May be called twice."""
        self._stopped = True
        if self._watching is not None:
            self._watching.cancel()
        clients, self.clients = list(self.clients.values()), {}
        try:
            await asyncio.gather(*(asyncio.to_thread(c.stop, STOP_TIMEOUT_S) for c in clients))
            await asyncio.gather(*self._ending)
        finally:
            for seat in self._seats.values():
                self._settle(seat)
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    def _settle(self, seat: Seat) -> None:
        """Nobody waits for this one any more."""
        seat.set_timer(None)
        if seat.first.done() and not seat.first.cancelled():
            seat.first.exception()  # seen: a second failure has nobody to go to
        seat.first.cancel()
        seat.settle(_closed())

    def _begin_local(self) -> None:
        specs = {replica.stage: spec for replica, spec in self._specs.items()}
        local = LocalStages(specs, *self._callbacks_by_name())
        self.clients = {replica: local.client(replica.stage) for replica in self._specs}

    def _begin(self, seat: Seat) -> None:
        """Start a replica's process."""
        seat.began_s, seat.due_s, seat.watch = self._clock(), None, None
        seat.generation += 1
        self._on_progress(str(seat.replica), "starting its process")
        callbacks = self._callbacks(seat.replica, seat.generation)
        self.clients[seat.replica] = self._make_client(seat.spec, *callbacks)

    # --- what replicas say, from other threads ------------------------------------------------

    def _callbacks(self, replica: Replica, generation: int) -> tuple[OnEvent, OnGone]:
        soon, seat = self._running_loop().call_soon_threadsafe, self._seats[replica]

        def dispatch(event: Event, frames: Frames) -> None:
            if seat.generation == generation:
                self._dispatch(replica, event, frames)

        def lost(why: AntiphonError) -> None:
            if seat.generation == generation:
                self._lost(replica, why)

        def on_event(stage: str, event: Event, frames: Frames) -> None:
            soon(dispatch, event, frames)

        def on_gone(stage: str, why: AntiphonError) -> None:
            soon(lost, why)

        return on_event, on_gone

    def _callbacks_by_name(self) -> tuple[OnEvent, OnGone]:
        callbacks = {replica.stage: self._callbacks(replica, 0) for replica in self._specs}

        def on_event(stage: str, event: Event, frames: Frames) -> None:
            callbacks[stage][0](stage, event, frames)

        def on_gone(stage: str, why: AntiphonError) -> None:
            callbacks[stage][1](stage, why)

        return on_event, on_gone

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("the stages have not been started")
        return self._loop

    def _dispatch(self, replica: Replica, event: Event, frames: Frames) -> None:
        seat = self._seats[replica]
        match event:
            case Starting() | Ready() if self._stopped:
                pass
            case Starting():
                self._on_progress(str(replica), event.phase)
            case Ready():
                self._ready(seat, event)
            case Pong():
                if seat.watch is not None:
                    seat.watch.answered(event.busy_s)
            case _:
                self._listener.on_event(replica, event, frames)

    def _ready(self, seat: Seat, ready: Ready) -> None:
        seat.set_timer(None)
        seat.life.ready()
        took = self._clock() - seat.began_s
        self._on_progress(str(seat.replica), f"{READY} {took:.1f} s")
        if isinstance(self.clients[seat.replica], WatchedClient):
            settings = self._supervision
            seat.watch = Watch(settings.silence_s, settings.step_s, self._tick_s)
        if not seat.first.done():
            seat.first.set_result(ready)
            return
        self._listener.on_back(seat.replica)
        seat.settle()

    def _lost(self, replica: Replica, why: AntiphonError) -> None:
        """While any stage still starts, the loss of one fails the start."""
        if self._stopped:
            return
        seat = self._seats[replica]
        if not self._started:
            firsts = [seat.first, *(s.first for s in self._seats.values())]
            if (waiting := next((f for f in firsts if not f.done()), None)) is not None:
                waiting.set_exception(why)
                return
        now = self._clock()
        pause = seat.life.lost(str(why), now)
        seat.watch = None
        seat.due_s = None if pause is None else now + pause
        self._clear(seat)
        if pause is None:
            seat.set_timer(None)
            seat.settle(why)
        else:
            seat.set_timer(self._later(pause, partial(self._begin_again, seat)))
        self._listener.on_gone(replica, why, pause)

    def _clear(self, seat: Seat) -> None:
        """See to what a process that has ended leaves in this one: threads, a pipe."""
        client = self.clients.get(seat.replica)
        if client is None or self._in_process:
            return
        task = asyncio.ensure_future(asyncio.to_thread(client.stop, STOP_TIMEOUT_S))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _begin_again(self, seat: Seat) -> None:
        if self._stopped:
            return
        seat.life.begins()
        try:
            self._begin(seat)
        except (OSError, RuntimeError) as error:  # no memory, descriptor or thread for it
            why = StageStartError(f"stage '{seat.replica}' could not be started again: {error}")
            self._lost(seat.replica, why)
            return
        if timeout_s := self._start_timeout_s:
            client, late = self.clients[seat.replica], seat.late(timeout_s)
            if isinstance(client, WatchedClient):
                seat.set_timer(self._later(timeout_s, partial(client.kill, late)))

    # --- watching -----------------------------------------------------------------------------

    @property
    def _tick_s(self) -> float:
        silence_s = self._supervision.silence_s
        return min(silence_s / _TICKS, _LONGEST_TICK_S) if silence_s else _LONGEST_TICK_S

    def _watch(self) -> None:
        """Look after every replica that can be, and again after a tick."""
        if self._stopped or not (self._supervision.silence_s or self._supervision.step_s):
            return
        for replica, seat in self._seats.items():
            client = self.clients[replica]
            if isinstance(client, WatchedClient):
                seat.look(client)
        self._watching = self._later(self._tick_s, self._watch)

    # --- on purpose ---------------------------------------------------------------------------

    async def restart(self, replica: Replica) -> None:
        """End a replica's process and start another; returns when that serves.

        Raises StageDiedError if it does not come to that, ShutdownError if `stop` is called.
        """
        if self._stopped:
            raise _closed()
        seat = self._seats[replica]
        waiter = self._running_loop().create_future()
        seat.back.append(waiter)
        # Whoever asked may go away; a replica without a process and a successor may not be.
        await to_the_end(self._replace(seat))
        await waiter

    async def _replace(self, seat: Seat) -> None:
        seat.set_timer(None)
        seat.generation += 1
        seat.watch = None
        running = seat.life.phase in (LifePhase.READY, LifePhase.STARTING)
        seat.life.stopped()
        if running:
            why = StageDiedError(f"stage '{seat.replica}' is started again")
            self._listener.on_gone(seat.replica, why, 0.0)
            await asyncio.to_thread(self.clients[seat.replica].stop, STOP_TIMEOUT_S)
        if self._stopped:
            seat.settle(_closed())
        else:
            self._begin_again(seat)


def _closed() -> ShutdownError:
    return ShutdownError("the pipeline was closed meanwhile")
