"""How many requests each stage may have: those that it serves at a time, and some that wait."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from antiphon.errors import OverloadedError

_MIN_RETRY_S, _MAX_RETRY_S = 1.0, 60.0
_SMOOTHING = 0.2  # of the mean time between two ends


class Admission:
    """Counts the live requests of each stage. Not thread-safe.

    `limits` are by stage; a stage without one takes all. `clock` gives seconds.
    """

    def __init__(
        self, limits: Mapping[str, int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._live: Counter[str] = Counter()
        self._last_end_s: float | None = None
        self._between_ends_s = 1.0

    def check(self, path: Iterable[str]) -> None:
        """Raise OverloadedError if a stage of the path has as many requests as it may."""
        for stage in path:
            limit = self._limits.get(stage)
            if limit is not None and self._live[stage] >= limit:
                error = OverloadedError(
                    f"{limit} requests are running and waiting at stage '{stage}', which is as"
                    " many as may; try again later"
                )
                error.retry_after_s = min(max(self._between_ends_s, _MIN_RETRY_S), _MAX_RETRY_S)
                raise error

    @contextmanager
    def preparing(self, path: Sequence[str]) -> Iterator[None]:
        """Around what comes before the submission: a request counts from then on.

        Raises as `check`.
        """
        self.check(path)
        self.enter(path)
        try:
            yield
        finally:
            self._live.subtract(path)

    def enter(self, path: Iterable[str]) -> None:
        """A request has been submitted to these stages."""
        self._live.update(path)

    def leave(self, path: Iterable[str]) -> None:
        """It is over."""
        self._live.subtract(path)
        now = self._clock()
        if self._last_end_s is not None:
            gap = now - self._last_end_s
            self._between_ends_s += _SMOOTHING * (gap - self._between_ends_s)
        self._last_end_s = now

    def check_integrity(self) -> None:
        """Raise AssertionError if more has left a stage than had entered it."""
        if any(count < 0 for count in self._live.values()):
            raise AssertionError("more requests have left a stage than it had")

    def live(self, stage: str) -> int:
        """Requests that this stage has, running and waiting."""
        return self._live[stage]

    def limit(self, stage: str) -> int | None:
        """How many it may have; None: all."""
        return self._limits.get(stage)
