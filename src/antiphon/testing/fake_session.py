"""A session in a stage without an engine: where it stands between its segments."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from antiphon.core.prompt_plan import UpdateKind
from antiphon.stage.messages import Update


@dataclass(slots=True)
class FakeSession:
    """One session; updates wait for the running segment's end."""

    epoch: int
    resting: bool = False  # the segment is over and nothing is queued
    queued: deque[Update] = field(default_factory=deque)

    def offer(self, update: Update) -> bool:
        """Take an update; whether its segment begins now. A replacement drops what is queued."""
        newest = self.queued[-1].epoch if self.queued else self.epoch
        if update.epoch <= newest:
            raise AssertionError(f"segment {update.epoch} is not newer than {newest}")
        if update.kind is UpdateKind.REPLACE:
            self.queued.clear()
        self.queued.append(update)
        return self.resting and self.rest()

    def rest(self) -> bool:
        """The segment has ended; whether the next one begins."""
        self.resting = not self.queued
        if self.queued:
            self.epoch = self.queued.popleft().epoch
        return not self.resting
