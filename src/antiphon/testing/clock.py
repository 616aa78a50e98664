"""A clock that stands still until it is told to move."""

from __future__ import annotations


class ManualClock:
    """Replaces `time.monotonic` where a clock is injected. Seconds; never goes back."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass. Raises ValueError if negative."""
        if not seconds >= 0:
            raise ValueError(f"a clock cannot go on by {seconds} seconds")
        self._now += seconds
