"""Does to a pipeline what the schedule says."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from antiphon.bench.soak_callers import Callers
from antiphon.bench.soak_plan import ON_REPLICAS, Fault
from antiphon.bench.soak_record import Done, FaultKind, Kind, Soak, Window
from antiphon.bench.soak_watch import Watch
from antiphon.errors import AntiphonError
from antiphon.orchestrator.omni import AsyncOmni
from antiphon.orchestrator.replica import Replica

_CALLERS = {
    FaultKind.ABORT: Kind.ABORT,
    FaultKind.LEAVE: Kind.LEAVE,
    FaultKind.INTERRUPT: Kind.SESSION,
    FaultKind.BAD: Kind.BAD,
}
_ELSEWHERE = {FaultKind.SLEEP: "all", **dict.fromkeys(_CALLERS, "a caller")}
_RETRY_S = 0.2
_FULL_BYTES = 0  # of a file, while shared memory counts as full


class Faults:
    """Carries out a schedule; faults that last overlap with those after them."""

    def __init__(
        self,
        omni: AsyncOmni,
        watch: Watch,
        callers: Callers,
        replicas: Sequence[Replica],
        found: Soak,
    ) -> None:
        self._omni = omni
        self._watch = watch
        self._callers = callers
        self._replicas = replicas
        self._found = found
        self._tasks: set[asyncio.Task[None]] = set()
        self._full: set[int] = set()  # processes that can write to no file just now
        self._managed: set[Replica] = set()  # that an operator drains or starts again just now
        self._sleeping = False

    async def run(self, schedule: Sequence[Fault], over: asyncio.Event) -> None:
        """Every fault at its time; returns when those that last are over."""
        for fault in schedule:
            try:
                await asyncio.wait_for(over.wait(), max(0.0, fault.at_s - self._watch.clock()))
                break
            except TimeoutError:
                self._inject(fault)
        await over.wait()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # --- parts --------------------------------------------------------------------------------

    def _inject(self, fault: Fault) -> None:
        replica = self._replicas[fault.index]
        target = str(replica) if fault.kind in ON_REPLICAS else _ELSEWHERE[fault.kind]
        done = Done(at_s=self._watch.clock(), kind=fault.kind, target=target, seconds=fault.seconds)
        self._found.faults.append(done)
        task = asyncio.create_task(self._carry_out(fault, replica, done))
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._found.remains.broken.append(f"a fault ended with {error!r}")

    async def _carry_out(self, fault: Fault, replica: Replica, done: Done) -> None:
        match fault.kind:
            case FaultKind.KILL:
                self._end(replica, signal.SIGKILL, done)
            case FaultKind.TERM:
                self._end(replica, signal.SIGTERM, done)
            case FaultKind.STOP:
                await self._stop(replica, fault.seconds, done)
            case FaultKind.FULL:
                await self._fill(replica, fault.seconds, done)
            case FaultKind.RESTART:
                await self._restart(replica, done)
            case FaultKind.DRAIN:
                await self._drain(replica, fault.seconds, done)
            case FaultKind.SLEEP:
                await self._sleep(fault.seconds, done)
            case _:
                draw = random.Random(f"{self._found.seed} fault {fault.at_s}")
                await self._callers.call(_CALLERS[fault.kind], draw)

    def _pid(self, replica: Replica, done: Done) -> int | None:
        """Of the process that serves or starts there."""
        state = self._watch.state(replica)
        waits = state.state == "restarting" and bool(state.restart_in_s)
        pid = None if waits else self._omni.stage_pids.get(str(replica))
        if pid is None:
            done.injected, done.note = False, "there was no process"
        return pid

    def _end(self, replica: Replica, number: signal.Signals, done: Done) -> None:
        pid = self._pid(replica, done)
        if pid is None:
            return
        done.note = f"it was {self._watch.state(replica).state}"
        kind = done.kind
        window = self._watch.open(replica, kind, ends_process=True, lasts=False)
        if not _send(pid, number):
            done.injected, done.note, window.ends_process = False, "it had just ended", False

    async def _stop(self, replica: Replica, seconds: float, done: Done) -> None:
        pid = self._pid(replica, done)
        if pid is None:
            return
        done.note = f"it was {self._watch.state(replica).state}"
        with self._lasting(replica, done.kind):
            _send(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(seconds)
            finally:
                if self._omni.stage_pids.get(str(replica)) == pid:
                    _send(pid, signal.SIGCONT)

    async def _fill(self, replica: Replica, seconds: float, done: Done) -> None:
        """No write to a file for this process alone, as others share the memory."""
        pid = self._pid(replica, done)
        if pid is None:
            return
        if pid in self._full:
            done.injected, done.note = False, "it was full already"
            return
        with self._lasting(replica, done.kind):
            self._full.add(pid)
            before = _limit(pid, _FULL_BYTES)
            try:
                await asyncio.sleep(seconds)
            finally:
                self._full.discard(pid)
                if before is not None and self._omni.stage_pids.get(str(replica)) == pid:
                    _limit(pid, before)

    async def _restart(self, replica: Replica, done: Done) -> None:
        if self._taken(replica, done):
            return
        self._managed.add(replica)
        window = self._watch.open(replica, done.kind, ends_process=True, lasts=True)
        try:
            await self._omni.restart(replica.stage, replica.number)
        except AntiphonError as error:
            done.note = f"{error.code}: {error}"
            window.ends_process = False  # whoever came in between has a window of its own
        finally:
            window.lifted = True
            self._managed.discard(replica)

    async def _drain(self, replica: Replica, seconds: float, done: Done) -> None:
        if self._taken(replica, done):
            return
        self._managed.add(replica)
        try:
            with self._lasting(replica, done.kind):
                draining = asyncio.create_task(self._omni.drain(replica.stage, replica.number))
                await asyncio.sleep(seconds)
                self._omni.rejoin(replica.stage, replica.number)
                draining.cancel()
                await asyncio.wait([draining])
        finally:
            self._managed.discard(replica)

    def _taken(self, replica: Replica, done: Done) -> bool:
        if replica in self._managed:
            done.injected, done.note = False, "it was drained or started again already"
        return replica in self._managed

    async def _sleep(self, seconds: float, done: Done) -> None:
        if self._sleeping:
            done.injected, done.note = False, "it slept already"
            return
        self._sleeping, began_s = True, self._watch.clock()
        try:
            await self._omni.sleep(1)
            await asyncio.sleep(seconds)
        except AntiphonError as error:
            done.note = f"asleep in part: {error.code}: {error}"
        await self._wake(done)
        self._sleeping = False
        self._found.sleeps.append((began_s, self._watch.clock()))

    async def _wake(self, done: Done) -> None:
        """Until it is awake: as long as a stage is being started again it cannot be."""
        while True:
            try:
                await self._omni.wake()
            except AntiphonError as error:
                done.note = f"woken late: {error.code}: {error}"
                await asyncio.sleep(_RETRY_S)
            else:
                return

    @contextmanager
    def _lasting(self, replica: Replica, kind: FaultKind) -> Iterator[Window]:
        window = self._watch.open(replica, kind, ends_process=False, lasts=True)
        try:
            yield window
        finally:
            window.lifted = True


def _send(pid: int, number: signal.Signals) -> bool:
    """Whether the process was there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _limit(pid: int, size: int) -> int | None:
    """Set the largest file that a process may write; what it was, None if it has ended."""
    try:
        soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))
    except (ProcessLookupError, PermissionError):
        return None
    return soft
