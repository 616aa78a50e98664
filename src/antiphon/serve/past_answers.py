"""What was said in the latest spoken answers, so that callers may refer to them by id."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from antiphon.serve.service import new_id

KEEP = 1024  # answers
KEEP_CHARS = 4 << 20  # of all of them together
KEEP_S = 3600


@dataclass(slots=True)
class PastAnswers:
    """The oldest go first. `clock` gives Unix seconds. Not thread-safe."""

    clock: Callable[[], float] = time.time
    _kept: OrderedDict[str, tuple[str, int]] = field(default_factory=OrderedDict)
    _chars: int = 0

    def new_id(self) -> str:
        """For an answer that has yet to be given."""
        return new_id("audio")

    def keep(self, id: str, transcript: str) -> int:
        """Remember what was said; until when, in Unix seconds."""
        expires_at = int(self.clock()) + KEEP_S
        self._kept[id] = (transcript, expires_at)
        self._chars += len(transcript)
        while len(self._kept) > KEEP or self._chars > KEEP_CHARS:
            _, (oldest, _) = self._kept.popitem(last=False)
            self._chars -= len(oldest)
        return expires_at

    def check_integrity(self) -> None:
        """Raise AssertionError if what is kept is miscounted, or too much."""
        chars = sum(len(text) for text, _ in self._kept.values())
        if chars != self._chars or len(self._kept) > KEEP or chars > KEEP_CHARS:
            raise AssertionError("past answers are miscounted")

    def transcript(self, id: str) -> str | None:
        """What was said; None if that is not known (any more)."""
        text, expires_at = self._kept.get(id, (None, 0))
        return text if self.clock() < expires_at else None
