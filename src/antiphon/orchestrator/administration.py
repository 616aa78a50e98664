"""What can be asked of a pipeline beside requests: how it is, to sleep, to wake, what it holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from antiphon.errors import AntiphonError, ShutdownError
from antiphon.observe.record import Observer
from antiphon.orchestrator.admission import Admission
from antiphon.orchestrator.clients import Frames, OnGone
from antiphon.orchestrator.questions import Answer, Questions
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


@dataclass(frozen=True, slots=True)
class StageState:
    """Whether a stage serves; `why` it does not if it is gone. Asleep, it lets requests wait."""

    state: Literal["starting", "ready", "asleep", "gone"]
    why: str | None = None


class Administration:
    """The base of `AsyncOmni`: its stages, and those that are asked by name of the question."""

    def __init__(self, router: Router, on_gone: OnGone | None = None) -> None:
        self._router = router
        self._told_of_losses = on_gone or (lambda stage, why: None)
        self._asleep: frozenset[str] = frozenset()  # memory that was given back
        self._questions = Questions()
        self._specs: dict[str, StageSpec] = {}
        self._stages: StageSet | None = None
        self._ready = False  # all of them serve

    def observe(self, observer: Observer) -> None:
        """Have `observer` told of every request from now on."""
        self._router.observers.add(observer)

    @property
    def num_running(self) -> int:
        """Requests that have been submitted and have no outcome yet."""
        return len(self._router)

    @property
    def stage_states(self) -> dict[str, StageState]:
        """How each stage that was to start is: truthful at any time."""
        states = {}
        for name in self._specs:
            why = self._router.gone.get(name)
            if why is not None:
                states[name] = StageState("gone", str(why))
            else:
                awake: StageState = StageState("asleep" if self._asleep else "ready")
                states[name] = awake if self._ready else StageState("starting")
        return states

    @property
    def admission(self) -> Admission:
        """How many requests each stage has, and may have."""
        return self._router.admission

    @property
    def stage_pids(self) -> dict[str, int]:
        """Process ids of the running stages; empty when they run in the caller's process."""
        clients = {} if self._stages is None else self._stages.clients
        return {name: c.pid for name, c in clients.items() if c.pid is not None}

    async def sleep(self, level: int = 1) -> dict[str, int]:
        """Have every stage give memory back; bytes freed per stage. Requests wait until `wake`."""
        answers = await self._ask(lambda token: Sleep(level, token))
        self._asleep = MEMORY
        return {name: a.bytes_freed for name, a in answers.items() if isinstance(a, Acknowledged)}

    async def wake(self, tags: list[str] | None = None) -> None:
        """Undo `sleep`."""
        await self._ask(lambda token: Wake(tags, token))
        self._asleep -= MEMORY if tags is None else frozenset(tags)

    async def inspect(self) -> dict[str, Inspection]:
        """Check every store of every stage; what each holds."""
        self._router.check_integrity()
        answers = await self._ask(Inspect)
        return {name: a for name, a in answers.items() if isinstance(a, Inspection)}

    async def measure(self, timeout_s: float = 1.0) -> dict[str, Measured]:
        """Figures of the stages, between two steps of each; nothing is checked.

        One that runs no more or does not answer in time is left out: this neither hangs nor fails.
        """
        clients = {} if self._stages is None or not self._ready else self._stages.clients
        alive = {name: c for name, c in clients.items() if name not in self._router.gone}
        return await self._questions.measure(alive, timeout_s)

    @property
    def late_outputs(self) -> int:
        """Outputs of stages that belonged to nothing any more."""
        return self._router.late_outputs

    async def _ask(self, command: Callable[[int], Command]) -> dict[str, Answer]:
        clients = self._serving().clients
        for name in clients:
            self._router.require(name)
        return await self._questions.ask(clients, command)

    def _on_gone(self, stage: str, why: AntiphonError) -> None:
        self._router.on_gone(stage, why)
        self._questions.lost(stage, why)
        self._told_of_losses(stage, why)

    def _on_event(self, stage: str, event: Event, frames: Frames) -> None:
        if isinstance(event, Acknowledged | Inspection | Measured):
            self._questions.answered(stage, event)
        else:
            self._router.on_event(stage, event, frames)

    def _serving(self) -> StageSet:
        if self._stages is None or not self._ready:
            raise ShutdownError("the pipeline is not running; call start() first")
        return self._stages
