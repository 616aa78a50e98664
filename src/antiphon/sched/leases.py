"""How long what has been stored for a consumer is kept: until it is used up, or too old."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from antiphon.core.deadlines import Deadlines


class Leases:
    """One per stored key. Seconds of the given clock; 0 is for ever. Not thread-safe."""

    def __init__(self, clock: Callable[[], float], lease_s: float) -> None:
        self._deadlines = Deadlines(clock)
        self._lease_s = lease_s
        self.num_expired = 0

    def begin(self, key: str) -> None:
        """Something has been stored under `key`."""
        self._deadlines.start(key, self._lease_s)

    def end(self, keys: Iterable[str]) -> None:
        """These have been used up or freed; unknown ones are ignored."""
        if len(self._deadlines):
            for key in keys:
                self._deadlines.clear(key)

    def expired(self) -> list[str]:
        """Keys that nobody has used up in time, each once: they are to be freed."""
        keys = [timer.key for timer in self._deadlines.expired()]
        self.num_expired += len(keys)
        return keys

    def next_due(self) -> float | None:
        """Value of the clock at which the next one runs out, None if none can."""
        return self._deadlines.next_due()

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: object) -> bool:
        return key in self._deadlines

    def check_integrity(self) -> None:
        """Raise AssertionError if the books disagree."""
        self._deadlines.check_integrity()
