"""What happened in a stage beside upstream's outputs, for its host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from antiphon.errors import ErrorInfo
from antiphon.payload.ref import Ref


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """A segment of a session is over; `reason` is stop, length or interrupt."""

    uid: str
    epoch: int
    reason: str


class HandoffStatistics(msgspec.Struct, frozen=True):
    """KV caches that leave the stage: what is under way now, and counters since it started."""

    marked: int  # hand-offs whose criterion was met with the cache there
    shipped: int
    ready: int  # announced to a consumer
    failed: int  # reported as failed, also without having been marked
    cancelled: int  # over with nobody waiting for them any more
    late_acks: int  # answers that nobody waited for: late ones and repeats
    active: int  # shipped and not answered, now
    held_blocks: int  # now
    leased: int  # stored and not used up, now
    leases_expired: int
    store_s: float  # of those that are ready, together: from the criterion to the announcement


@dataclass(slots=True)
class StageEvents:
    """Since the host last asked."""

    refs: list[Ref] = field(default_factory=list)
    errors: dict[str, ErrorInfo] = field(default_factory=dict)
    used: dict[str, list[str]] = field(default_factory=dict)  # incoming edge: keys used up
    segments: list[SegmentEnd] = field(default_factory=list)

    def note_used(self, edge: str, keys: Sequence[str]) -> None:
        """These chunks of an incoming edge are needed no more."""
        if keys:
            self.used.setdefault(edge, []).extend(keys)

    def __bool__(self) -> bool:
        return bool(self.refs or self.errors or self.used or self.segments)
