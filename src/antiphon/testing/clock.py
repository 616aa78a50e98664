"""A clock that stands still until it is told to move, and timers that go by it."""

from __future__ import annotations

from collections.abc import Callable


class ManualTimer:
    """A call that a manual clock will make."""

    def __init__(self, due: float, call: Callable[[], None]) -> None:
        self.due = due
        self.call: Callable[[], None] | None = call  # None: made, or cancelled

    def cancel(self) -> None:
        self.call = None


class ManualClock:
    """Replaces `time.monotonic` where a clock is injected. Seconds; never goes back."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._timers: list[ManualTimer] = []

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass, and make the calls that are due. Raises ValueError if negative."""
        if not seconds >= 0:
            raise ValueError(f"a clock cannot go on by {seconds} seconds")
        end = self._now + seconds
        while due := [t for t in self._timers if t.call is not None and t.due <= end]:
            timer = min(due, key=lambda t: t.due)
            self._now = max(self._now, timer.due)
            call, timer.call = timer.call, None
            if call is not None:
                call()
        self._now = end
        self._timers = [t for t in self._timers if t.call is not None]

    @property
    def ordered(self) -> int:
        """Calls that have been neither made nor cancelled."""
        return sum(timer.call is not None for timer in self._timers)

    @property
    def next_due(self) -> float | None:
        """When the next call is made; None if none is ordered."""
        return min((timer.due for timer in self._timers if timer.call is not None), default=None)

    def later(self, seconds: float, call: Callable[[], None]) -> ManualTimer:
        """Order a call in `seconds`."""
        timer = ManualTimer(self._now + seconds, call)
        self._timers.append(timer)
        return timer
