"""Schedulers whose deadlines a test moves. Named in a stage's engine arguments."""

from __future__ import annotations

from antiphon.sched.ar import ARScheduler, AsyncARScheduler
from antiphon.testing.clock import ManualClock

CLOCK = ManualClock(start=1.0)


class ClockedARScheduler(ARScheduler):
    """Reads `CLOCK`."""

    clock = staticmethod(CLOCK)


class ClockedAsyncARScheduler(AsyncARScheduler):
    """The same with asynchronous scheduling."""

    clock = staticmethod(CLOCK)
