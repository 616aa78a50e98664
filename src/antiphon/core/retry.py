"""When to try again what has failed: a few times, each wait longer than the one before."""

from __future__ import annotations

import math

import msgspec


class RetryPolicy(msgspec.Struct, frozen=True):
    """Waits of `first_s`, `first_s * factor`, `first_s * factor**2`, … between the attempts.

    It only counts; who waits, and on which clock, is the caller's business. By default an attempt
    is followed by 0.05, 0.1, 0.2 and 0.4 s, so that all is over after 0.75 s. Raises ValueError for
    values that make no sense.
    """

    first_s: float = 0.05
    """Seconds between the first and the second attempt; 0 tries again at once."""

    factor: float = 2.0
    """How much longer each wait is than the one before, 1 to 10."""

    attempts: int = 5
    """How often something is tried in all, 1 to 100; with 1 nothing is tried again."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.first_s) and self.first_s >= 0):
            raise ValueError(f"first_s is {self.first_s}; it must be finite and not negative")
        if not 1 <= self.factor <= 10:
            raise ValueError(f"factor is {self.factor}; it must be from 1 to 10")
        if not 1 <= self.attempts <= 100:
            raise ValueError(f"attempts is {self.attempts}; it must be from 1 to 100")

    def next_delay(self, attempt: int) -> float | None:
        """Seconds to wait after attempt number `attempt` has failed; None: give up.

        Attempts count from 1. Raises ValueError for a smaller number.
        """
        if attempt < 1:
            raise ValueError(f"attempt is {attempt}; attempts count from 1")
        return None if attempt >= self.attempts else self.first_s * self.factor ** (attempt - 1)
