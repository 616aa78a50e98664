"""When a process that has ended is started again, and when one that is silent counts as ended.

Pure: the caller starts and ends processes, and says what time it is.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """At most `restarts` within `window_s`, each after a pause that doubles from `backoff_s` on.

    `max_backoff_s` is the longest pause. All in seconds, `window_s` more than 0.
    """

    restarts: int = 5
    window_s: float = 600.0
    backoff_s: float = 1.0
    max_backoff_s: float = 30.0


class LifePhase(enum.Enum):
    """Of a process that is kept alive."""

    STARTING = enum.auto()
    READY = enum.auto()
    LOST = enum.auto()  # it has ended, and will be started again
    DOWN = enum.auto()  # it has ended too often
    STOPPED = enum.auto()  # on purpose


_MOVES = {
    LifePhase.STARTING: {LifePhase.READY, LifePhase.LOST, LifePhase.DOWN, LifePhase.STOPPED},
    LifePhase.READY: {LifePhase.LOST, LifePhase.DOWN, LifePhase.STOPPED},
    LifePhase.LOST: {LifePhase.STARTING, LifePhase.STOPPED},
    LifePhase.DOWN: {LifePhase.STARTING, LifePhase.STOPPED},
    LifePhase.STOPPED: {LifePhase.STARTING},
}


class Life:
    """The record of one process, over all its restarts. An illegal move raises ValueError."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._ends: deque[float] = deque()  # within the window
        self.phase = LifePhase.STARTING
        self.restarts = 0
        self.why: str | None = None  # of its last end; None while it serves

    def ready(self) -> None:
        """It serves."""
        self._move(LifePhase.READY)
        self.why = None

    def lost(self, why: str, now: float) -> float | None:
        """It has ended; seconds until it is to be started again, None: it stays down."""
        self._ends.append(now)
        while self._ends[0] <= now - self._policy.window_s:
            self._ends.popleft()
        count = len(self._ends)
        again = count <= self._policy.restarts
        self._move(LifePhase.LOST if again else LifePhase.DOWN)
        self.why = why
        if not again:
            return None
        # Not 2 ** count: that has no bound.
        pause = self._policy.backoff_s
        for _ in range(count - 1):
            pause = min(2 * pause, self._policy.max_backoff_s)
        return min(pause, self._policy.max_backoff_s)

    def stopped(self) -> None:
        """It was ended on purpose."""
        self._move(LifePhase.STOPPED)

    def begins(self) -> None:
        """It is started again."""
        self._move(LifePhase.STARTING)
        self.restarts += 1

    def _move(self, to: LifePhase) -> None:
        if to not in _MOVES[self.phase]:
            raise ValueError(f"a process that is {self.phase.name} cannot become {to.name}")
        self.phase = to


class Verdict(enum.Enum):
    """What a watch makes of a process."""

    WELL = enum.auto()
    SILENT = enum.auto()  # it does not answer, and there is time
    DEAD = enum.auto()  # it has not answered for as long as it may
    STUCK = enum.auto()  # it answers, and has been at one step for as long as it may


class Watch:
    """Judges a process by its answers to questions, one asked at a time.

    Time is counted in ticks, `tick_s` seconds each, and not read from a clock: a watcher that was
    stopped itself, or whose clock jumped, blames nobody. `silence_s` and `step_s` 0 set no limit.
    """

    def __init__(self, silence_s: float, step_s: float, tick_s: float) -> None:
        self._silence_s = silence_s
        self._step_s = step_s
        self._tick_s = tick_s
        self._asked = False
        self._busy_s = 0.0
        self.silent_s = 0.0

    def tick(self) -> bool:
        """A tick has passed; whether to ask now."""
        if self._asked:
            self.silent_s += self._tick_s
            return False
        self._asked = True
        return True

    def answered(self, busy_s: float) -> None:
        """The answer: seconds that the step under way has taken, 0 if there is none."""
        self._asked = False
        self.silent_s = 0.0
        self._busy_s = busy_s

    @property
    def verdict(self) -> Verdict:
        if self._silence_s and self.silent_s >= self._silence_s:
            return Verdict.DEAD
        if self._step_s and self._busy_s >= self._step_s:
            return Verdict.STUCK
        if self._silence_s and self.silent_s >= self._silence_s / 4:
            return Verdict.SILENT
        return Verdict.WELL

    @property
    def busy_s(self) -> float:
        """Seconds that the step under way had taken at the last answer."""
        return self._busy_s
