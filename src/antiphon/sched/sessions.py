"""Sessions: requests whose input keeps arriving, segment by segment.

A segment ends as a request would; then the session rests, keeps its blocks and waits for an update,
unless one is queued already. Upstream's own handling of a stopped streaming request rolls back what
is in flight and drops its late output; what is added here are the kinds of update, the epochs and
the interruption.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

from vllm import SamplingParams

from antiphon.core.prompt_plan import PromptUpdate, UpdateKind
from antiphon.errors import InvalidRequestError

MAX_QUEUED = 64  # updates that may wait for the segment's end


@dataclass(frozen=True, slots=True)
class SessionUpdate:
    """New input of a session, which is its segment number `epoch`."""

    epoch: int
    prompt: PromptUpdate
    params: SamplingParams | None = None  # None: as before


@dataclass(slots=True)
class Session:
    """One session's place between its segments."""

    epoch: int = 0
    resting: bool = False  # the segment is over and nothing is queued
    queued: deque[SessionUpdate] = field(default_factory=deque)

    def check_integrity(self) -> None:
        """Raise AssertionError if the segments to come are out of order, or one is not begun."""
        if self.resting and self.queued:
            raise AssertionError("a session rests that has something to do")
        epochs = [self.epoch, *(update.epoch for update in self.queued)]
        if any(later <= earlier for earlier, later in pairwise(epochs)):
            raise AssertionError(f"a session's segments are out of order: {epochs}")

    def offer(self, update: SessionUpdate) -> bool:
        """Take an update; whether it begins now.

        A replacement drops what is queued. Raises InvalidRequestError if the epoch does not rise,
        or too many updates wait.
        """
        newest = self.queued[-1].epoch if self.queued else self.epoch
        if update.epoch <= newest:
            raise InvalidRequestError(f"segment {update.epoch} is not newer than {newest}")
        if update.prompt.kind is UpdateKind.REPLACE:
            self.queued.clear()
        if len(self.queued) >= MAX_QUEUED:
            raise InvalidRequestError(
                f"{MAX_QUEUED} updates wait for the segment's end; wait for some of them"
            )
        self.queued.append(update)
        return self.resting
