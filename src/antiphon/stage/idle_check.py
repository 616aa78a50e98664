"""A stage that has nothing to do looks whether its state is whole."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

IDLE_S = 1.0
"""So long after its last step, and at most once for each time that it falls idle: no request waits
for the check, and a stage under load makes none."""

logger = logging.getLogger(__name__)


class IdleCheck:
    """What disagrees is logged once and counted; with `strict`, for debugging, it is raised."""

    def __init__(
        self,
        stage: str,
        check: Callable[[], object],
        *,
        strict: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`check` raises AssertionError; `clock` gives seconds."""
        self._stage = stage
        self._check = check
        self._strict = strict
        self._clock = clock
        self._due: float | None = None
        self.failures = 0

    def stepped(self, *, idle: bool) -> None:
        """A step is over, and has left nothing to do if `idle`."""
        self._due = self._clock() + IDLE_S if idle else None

    @property
    def due(self) -> float | None:
        """Value of the clock at which to `run`, if the stage is idle still."""
        return self._due

    @property
    def is_due(self) -> bool:
        return self._due is not None and self._due <= self._clock()

    def run(self) -> None:
        """Check now, and not again before another step. AssertionError only if `strict`."""
        self._due = None
        try:
            self._check()
        except AssertionError:
            if self._strict:
                raise
            self.failures += 1
            if self.failures == 1:
                logger.exception(
                    "stage '%s' has lost track of its own state, which is a defect. It goes on;"
                    " restart it when that suits, and report this",
                    self._stage,
                )
