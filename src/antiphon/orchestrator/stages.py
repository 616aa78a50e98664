"""Starting and stopping the stages of a pipeline, all at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from antiphon.connector.runs import RunLock, reclaim_dead_runs
from antiphon.errors import AntiphonError, StageStartError
from antiphon.orchestrator.clients import Frames, OnEvent, OnGone, StageClient
from antiphon.orchestrator.local import LocalStages
from antiphon.orchestrator.process import ProcessStage
from antiphon.orchestrator.tasks import READY, Progress
from antiphon.stage.messages import Event, Ready, Starting
from antiphon.stage.spec import StageSpec

MakeClient = Callable[[StageSpec, OnEvent, OnGone], StageClient]
"""Starts a stage in some way of its own; `Ready` or `Failed` has to follow as an event."""

STOP_TIMEOUT_S = 10.0  # per attempt: asked, then SIGTERM, then SIGKILL


class StageSet:
    """The running stages. Callbacks arrive on the event loop that `start` runs on."""

    def __init__(
        self,
        specs: Mapping[str, StageSpec],
        *,
        in_process: bool,
        run: str,
        on_event: Callable[[str, Event, Frames], None],
        on_gone: Callable[[str, AntiphonError], None],
        on_progress: Progress,
        make_client: MakeClient | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._specs = specs
        self._in_process = in_process
        self._run = run
        self._on_event = on_event
        self._on_gone = on_gone
        self._on_progress = on_progress
        self._make_client = make_client
        self._clock = clock
        self._ordered = 0.0  # when the start was
        self._lock: RunLock | None = None
        self._ready: dict[str, asyncio.Future[Ready]] = {}
        self.clients: dict[str, StageClient] = {}

    async def start(self, timeout_s: float) -> None:
        """Start all stages in parallel and wait for them; `timeout_s` 0 waits for ever.

        Raises StageStartError, or the error that a stage reported; the caller then calls `stop`.
        """
        loop = asyncio.get_running_loop()
        reclaim_dead_runs()
        self._lock = RunLock(self._run)
        self._ordered = self._clock()
        self._ready = {name: loop.create_future() for name in self._specs}

        def on_event(stage: str, event: Event, frames: Frames) -> None:
            loop.call_soon_threadsafe(self._dispatch, stage, event, frames)

        def on_gone(stage: str, why: AntiphonError) -> None:
            loop.call_soon_threadsafe(self._lost, stage, why)

        if self._make_client is not None:
            make = self._make_client
            self.clients = {
                name: make(spec, on_event, on_gone) for name, spec in self._specs.items()
            }
        elif self._in_process:
            local = LocalStages(self._specs, on_event, on_gone)
            self.clients = {name: local.client(name) for name in self._specs}
        else:
            for name, spec in self._specs.items():
                self._on_progress(name, "starting its process")
                self.clients[name] = ProcessStage(spec, on_event, on_gone)
        try:
            async with asyncio.timeout(timeout_s or None):
                await asyncio.gather(*self._ready.values())
        except TimeoutError:
            # The time running out has cancelled the futures of those that are late.
            late = ", ".join(f"'{name}'" for name, f in self._ready.items() if f.cancelled())
            raise StageStartError(
                f"not ready after {timeout_s:g} s: stage {late}; "
                f"raise start_timeout_s or look at the model"
            ) from None

    async def stop(self) -> None:
        """End every stage and remove what the run left in shared memory. May be called twice."""
        clients, self.clients = list(self.clients.values()), {}
        try:
            await asyncio.gather(*(asyncio.to_thread(c.stop, STOP_TIMEOUT_S) for c in clients))
        finally:
            for future in self._ready.values():
                if future.done() and not future.cancelled():
                    future.exception()  # seen: a second failure has nobody to go to
                future.cancel()
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    def _dispatch(self, stage: str, event: Event, frames: Frames) -> None:
        if isinstance(event, Starting):
            self._on_progress(stage, event.phase)
        elif isinstance(event, Ready):
            took = self._clock() - self._ordered
            self._on_progress(stage, f"{READY} {took:.1f} s")
            if not self._ready[stage].done():
                self._ready[stage].set_result(event)
        else:
            self._on_event(stage, event, frames)

    def _lost(self, stage: str, why: AntiphonError) -> None:
        """While any stage still starts, the loss of one fails the start."""
        futures = [self._ready[stage], *self._ready.values()]
        if (waiting := next((f for f in futures if not f.done()), None)) is not None:
            waiting.set_exception(why)
        else:
            self._on_gone(stage, why)
