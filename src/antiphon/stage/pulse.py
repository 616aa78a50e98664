"""How long a stage has been at what it does; read by the thread that answers for it."""

from __future__ import annotations

import time


class Pulse:
    """Written by the stage's thread, read by any."""

    def __init__(self) -> None:
        self._since: float | None = None

    def begin(self) -> None:
        """A step or a command begins."""
        self._since = time.monotonic()

    def rest(self) -> None:
        """It is over, and nothing else has begun."""
        self._since = None

    @property
    def busy_s(self) -> float:
        """Seconds since it began; 0 if nothing is under way."""
        since = self._since  # once: the stage's thread may write in between
        return 0.0 if since is None else time.monotonic() - since
