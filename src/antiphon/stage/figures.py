"""What a stage says of itself when it is asked."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.errors import ErrorInfo
from antiphon.stage.engine import StageEngine
from antiphon.stage.idle_check import IdleCheck
from antiphon.stage.messages import Inspection, Measured
from antiphon.stage.slumber import Slumber

_NOTHING = {"requests": 0, "io": 0, "connector_entries": 0}


class Figures:
    """Reads what others keep, and counts steps."""

    def __init__(self, engine: StageEngine, slumber: Slumber, idle_check: IdleCheck) -> None:
        self._engine = engine
        self._slumber = slumber
        self._idle_check = idle_check
        self.steps = 0

    def inspection(self, token: int, check: Callable[[], dict[str, int]]) -> Inspection:
        """After `check`, which raises AssertionError, and gives what the worker holds."""
        error, held = None, _NOTHING
        try:
            held = check()
        except AssertionError as failure:
            error = ErrorInfo("integrity", str(failure))
        scheduler = self._engine.scheduler
        return Inspection(
            token=token,
            requests=len(scheduler.requests),
            gated=len(scheduler.coordinator.gate),
            free_blocks=self._engine.num_free_blocks,
            total_blocks=self._engine.num_blocks,
            worker_requests=held["requests"] + held["io"],
            connector_entries=held["connector_entries"],
            steps=self.steps,
            error=error,
            integrity_failures=self._idle_check.failures,
            edges=scheduler.coordinator.outflow.statistics(),
            gate=scheduler.coordinator.gate.statistics(),
            handoffs=scheduler.handoffs.statistics(),
        )

    def measured(self, token: int) -> Measured:
        """Nothing is checked."""
        scheduler = self._engine.scheduler
        return Measured(
            token=token,
            steps=self.steps,
            integrity_failures=self._idle_check.failures,
            gate=scheduler.coordinator.gate.statistics(),
            edges=scheduler.coordinator.outflow.statistics(),
            handoffs=scheduler.handoffs.statistics(),
            engine=self._engine.families(self._slumber.level),
        )
