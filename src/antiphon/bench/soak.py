"""`antiphon bench soak`: random callers and random faults on one pipeline, for minutes or hours.

The faults follow a schedule that the seed decides; what callers do follows from the seed as well,
when they do it from how fast they are answered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from antiphon.bench.soak_callers import GUARD_S, Callers
from antiphon.bench.soak_calls import Calls
from antiphon.bench.soak_faults import Faults
from antiphon.bench.soak_plan import Fault, schedule
from antiphon.bench.soak_process import alive, files_of, process, runs
from antiphon.bench.soak_record import FaultKind, Kind, Outcome, Soak
from antiphon.bench.soak_rest import look_at_rest
from antiphon.bench.soak_watch import Outcomes, Watch
from antiphon.orchestrator.omni import AsyncOmni
from antiphon.orchestrator.replica import Replica
from antiphon.orchestrator.tasks import Progress
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.supervision import Supervision
from antiphon.pipeline.topology import Topology

RECOVERY_S = 180.0  # for all replicas to serve after the last fault
_POOL = 64  # threads of the event loop's pool are started before they are counted
_KINDS = {
    FaultKind.ABORT: Kind.ABORT,
    FaultKind.LEAVE: Kind.LEAVE,
    FaultKind.BAD: Kind.BAD,
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What a soak does. `say` is given lines for whoever watches."""

    duration_s: float
    callers: int
    seed: int
    every_s: float
    faults: tuple[FaultKind, ...]
    deadline_s: float
    silence_s: float
    replicas: dict[str, int]
    say: Callable[[str], None]
    progress_every_s: float = 10.0
    rest_s: float = 10.0  # for the stages to have let go of everything


def supervision(silence_s: float) -> Supervision:
    """Of a pipeline that has to stand a soak: it is started again however often it ends."""
    return Supervision(
        restarts=1_000_000,
        window_s=60.0,
        backoff_s=0.25,
        max_backoff_s=1.0,
        silence_s=silence_s,
        step_s=max(60.0, 4 * silence_s),
    )


def deployment(given: Deployment, plan: Plan) -> Deployment:
    """`given` with the plan's replicas and supervision."""
    return msgspec.structs.replace(
        given,
        replicas={**given.replicas, **plan.replicas},
        supervision=supervision(plan.silence_s),
    )


async def soak(
    topology: Topology,
    given: Deployment,
    plan: Plan,
    found: list[Soak],
    *,
    on_progress: Progress = lambda stage, phase: None,
    make: Callable[..., AsyncOmni] = AsyncOmni,
) -> None:
    """Start the pipeline, soak it, close it; what was found is in `found` as soon as it begins.

    A cancellation ends the soak early, and everything after it is done all the same. Raises what a
    start fails with, or a question before the first fault. `make` makes the pipeline.
    """
    watches: list[Watch] = []

    def on_notice(line: str) -> None:
        for watch in watches:
            watch.on_notice(line)

    omni = make(
        topology,
        deployment=deployment(given, plan),
        inputs=("text",),
        on_progress=on_progress,
        on_notice=on_notice,
    )
    try:
        await omni.start()
        run = _Run(omni, plan, Calls(omni.topology, _kinds(plan.faults)))
        await run.prepare()
        watches.append(run.watch)
        found.append(run.found)
        await run.begin()
    except BaseException:
        await omni.close()
        raise
    ending = asyncio.ensure_future(run.end())
    with suppress(asyncio.CancelledError):
        await asyncio.shield(ending)
    await ending


def _kinds(faults: Sequence[FaultKind]) -> list[Kind]:
    """What callers do: nothing that is a fault and was not asked for."""
    left_out = {kind for fault, kind in _KINDS.items() if fault not in faults}
    return [kind for kind in Kind if kind not in left_out]


class _Run:
    """One soak of a pipeline that serves."""

    def __init__(self, omni: AsyncOmni, plan: Plan, calls: Calls) -> None:
        self._omni = omni
        self._plan = plan
        self._calls = calls
        stages = omni.stage_states
        self._replicas = [Replica(name, r.id) for name, s in stages.items() for r in s.replicas]
        self.found = Soak(
            pipeline=omni.topology.name,
            seed=plan.seed,
            callers=plan.callers,
            every_s=plan.every_s,
            silence_s=plan.silence_s,
            planned_s=plan.duration_s,
            replicas={name: len(stage.replicas) for name, stage in stages.items()},
        )
        self.watch = Watch(omni, self.found)
        self._callers = Callers(
            omni,
            calls,
            seed=plan.seed,
            deadline_s=plan.deadline_s,
            clock=self.watch.clock,
            record=self.found.calls,
        )
        self._outcomes = Outcomes(self._callers.by_label)
        self._runs = runs()
        self._over = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._watching: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        """Learn the right answers, and count what there is."""
        self._plan.say("asking every question once")
        await self._calls.learn(self._omni)
        await self._calls.learn_sessions(self._omni)
        await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.01) for _ in range(_POOL)))
        self.found.remains.before = process()
        self._omni.observe(self._outcomes)

    async def begin(self) -> None:
        """The soak itself. A cancellation ends it early."""
        plan = self._plan
        faults = self._schedule()
        self.watch.start_over()
        self._watching = asyncio.create_task(self.watch.run())
        injector = Faults(self._omni, self.watch, self._callers, self._replicas, self.found)
        self._tasks = [asyncio.create_task(injector.run(faults, self._over))]
        for number in range(plan.callers):
            self._tasks.append(asyncio.create_task(self._callers.loop(number, self._over)))
        try:
            while (left_s := plan.duration_s - self.watch.clock()) > 0:
                await asyncio.sleep(min(left_s, plan.progress_every_s))
                plan.say(self._line())
        except asyncio.CancelledError:
            self.found.stopped_early = True
            plan.say("stopped; waiting for what is under way")
        self.found.lasted_s = self.watch.clock()

    def _schedule(self) -> list[Fault]:
        plan = self._plan
        kinds = [k for k in plan.faults if k is not FaultKind.INTERRUPT or self._has_sessions]
        faults = schedule(
            plan.seed,
            duration_s=plan.duration_s,
            every_s=plan.every_s,
            kinds=kinds,
            replicas=len(self._replicas),
            silence_s=plan.silence_s,
        )
        names = [str(replica) for replica in self._replicas]
        plan.say(f"{len(faults)} faults, seed {plan.seed}:")
        for fault in faults:
            plan.say(fault.line(names))
        return faults

    @property
    def _has_sessions(self) -> bool:
        return self._calls.has(Kind.SESSION)

    def _line(self) -> str:
        """How far it is."""
        calls = self.found.calls
        counts = [f"{n} {o}" for o in Outcome if (n := sum(call.outcome is o for call in calls))]
        states = self._omni.stage_states.items()
        away = [f"{name} {stage.state}" for name, stage in states if stage.state != "ready"]
        parts = [
            f"{self.watch.clock():.0f} of {self._plan.duration_s:.0f} s",
            f"{sum(fault.injected for fault in self.found.faults)} faults",
            f"{len(self._callers.under_way)} calls under way",
            *counts,
            *away,
        ]
        return ", ".join(parts)

    # --- the end ------------------------------------------------------------------------------

    async def end(self) -> None:
        """No more faults and callers: what is left, when all has ended, and after closing."""
        try:
            self._over.set()
            limit_s = self._plan.deadline_s + self._plan.silence_s + GUARD_S
            await asyncio.wait(self._tasks, timeout=limit_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.watch.until_all_serve(), RECOVERY_S)
            await look_at_rest(self._omni, self._outcomes, self.found, self._plan.rest_s)
        finally:
            began = time.monotonic()
            await self._omni.close()
            self.found.remains.close_s = time.monotonic() - began
            await self._give_up()
            left = self.found.remains
            left.files, left.processes = files_of(self._runs), alive(self.watch.pids)

    async def _give_up(self) -> None:
        """Calls that have not ended are told that the pipeline is closed; then they are left."""
        tasks = [task for task in self._tasks if not task.done()]
        if self._watching is not None:
            tasks.append(self._watching)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5.0)
        for call in self._callers.under_way:
            call.outcome = Outcome.HUNG
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                self.found.remains.broken.append(f"a caller ended with {error!r}")
