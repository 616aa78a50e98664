"""Looks at the pipeline while a soak runs: when replicas serve, what the tool's process takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from antiphon.bench.soak_process import descriptors, resident_bytes, threads
from antiphon.bench.soak_record import Called, FaultKind, Sample, Soak, Window
from antiphon.observe.record import Timeline
from antiphon.orchestrator.administration import Administration
from antiphon.orchestrator.replica import Replica, ReplicaState, StageState

EVERY_S = 0.05
_SAMPLE_EVERY_S = 1.0


class Watch:
    """Windows of unavailability, from the fault on until the replica is seen to serve again."""

    def __init__(self, omni: Administration, found: Soak) -> None:
        self._omni = omni
        self._found = found
        self._began = time.monotonic()
        self._sampled_s = -_SAMPLE_EVERY_S
        self._looked = asyncio.Event()
        self.pids: set[int] = set()  # of all stage processes that there were

    def clock(self) -> float:
        """Seconds since the soak began."""
        return time.monotonic() - self._began

    def start_over(self) -> None:
        """The soak begins now."""
        self._began = time.monotonic()

    # --- windows ------------------------------------------------------------------------------

    def open(self, replica: Replica, kind: FaultKind, *, ends_process: bool, lasts: bool) -> Window:
        """A fault is about to hit this replica; if it `lasts`, whoever ends it sets `lifted`."""
        window = Window(
            stage=replica.stage,
            number=replica.number,
            kind=kind,
            began_s=self.clock(),
            restarts=self.state(replica).restarts,
            ends_process=ends_process,
            lifted=not lasts,
        )
        self._found.windows.append(window)
        return window

    def state(self, replica: Replica) -> ReplicaState:
        """How it is now."""
        return _by_replica(self._omni.stage_states)[replica]

    @property
    def all_serve(self) -> bool:
        """Whether every replica takes requests, and no window is open."""
        states = _by_replica(self._omni.stage_states).values()
        return all(state.state == "ready" for state in states) and not self._open

    async def until_all_serve(self) -> None:
        """While `run` does."""
        while not self.all_serve:
            self._looked.clear()
            await self._looked.wait()

    @property
    def _open(self) -> list[Window]:
        return [window for window in self._found.windows if window.ended_s is None]

    def look(self) -> None:
        """Close the windows of replicas that serve again."""
        self._looked.set()
        states, now = _by_replica(self._omni.stage_states), self.clock()
        for window in self._open:
            state = states[Replica(window.stage, window.number)]
            if over(window, state):
                window.ended_s = now
                window.survived = state.restarts == window.restarts
        self.pids.update(self._omni.stage_pids.values())
        if now - self._sampled_s >= _SAMPLE_EVERY_S:
            self._sampled_s = now
            self._found.samples.append(
                Sample(now, resident_bytes(), len(threads()), len(descriptors()))
            )

    async def run(self) -> None:
        """Look again and again, until it is cancelled; and see how late the event loop is."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(EVERY_S)
            late_s = time.monotonic() - before - EVERY_S
            self._found.lag_s = max(self._found.lag_s, late_s)
            self.look()

    def on_notice(self, line: str) -> None:
        """A replica was lost, or serves again: keep the line, and look at once."""
        self._found.notices.append(f"{self.clock():.2f} s: {line}")
        self.look()


def over(window: Window, state: ReplicaState) -> bool:
    """Whether the replica serves again, as it was before the fault."""
    if state.state not in ("ready", "asleep"):
        return False
    if state.restarts > window.restarts:
        return True  # another process
    return window.lifted and not window.ends_process


def _by_replica(states: Mapping[str, StageState]) -> dict[Replica, ReplicaState]:
    return {
        Replica(name, replica.id): replica
        for name, stage in states.items()
        for replica in stage.replicas
    }


class Outcomes:
    """An observer: every request that begins has one outcome; and which replicas had it."""

    def __init__(self, calls: Mapping[str, Called]) -> None:
        self._calls = calls  # by the caller's label
        self._open: set[str] = set()
        self.twice: list[str] = []

    @property
    def open(self) -> tuple[str, ...]:
        """Requests without an outcome."""
        return tuple(sorted(self._open))

    def began(self, uid: str, path: tuple[str, ...]) -> None:
        self._open.add(uid)

    def first_output(self, uid: str) -> None: ...

    def ended(self, timeline: Timeline) -> None:
        if timeline.id not in self._open:
            self.twice.append(timeline.id)
        self._open.discard(timeline.id)
        call = None if timeline.label is None else self._calls.get(timeline.label)
        if call is not None:
            call.replicas |= {span.stage: span.replica for span in timeline.stages}

    def refused(self, code: str) -> None: ...
