"""The order of a stream's chunks: they apply by number, whatever order they arrive in.

A gap waits and is never skipped, a repeat is dropped, and what comes behind the end is late. A full
edge is a stream whose only chunk is its end.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from antiphon.errors import PayloadError
from antiphon.payload.ref import Ref

MAX_AHEAD = 4096  # chunks that may wait for a missing one; a producer's budget ends far below it


class Verdict(enum.Enum):
    """What to do with a chunk that arrived."""

    ACCEPTED = "accepted"  # it has its place, now or when the gap before it is closed
    DUPLICATE = "duplicate"  # seen already: its key is the one that was accepted
    LATE = "late"  # the stream has ended before it


@dataclass(slots=True)
class ChunkOrder:
    """The chunks of one (request, edge, epoch)."""

    next_seq: int = 0  # the chunk that everything waits for
    end_seq: int | None = None  # number of the last chunk, once it is known
    ahead: dict[int, Ref] = field(default_factory=dict)  # arrived before their turn

    def offer(self, ref: Ref) -> Verdict:
        """A chunk arrived; `take` gives what is in order then.

        Raises PayloadError when too many chunks wait for a missing one; this one waits as well, so
        that it is freed with them.
        """
        if self.end_seq is not None and ref.seq > self.end_seq:
            return Verdict.LATE
        if ref.seq < self.next_seq or ref.seq in self.ahead:
            return Verdict.DUPLICATE
        self.ahead[ref.seq] = ref
        if ref.end:
            self.end_seq = ref.seq
        if len(self.ahead) > MAX_AHEAD and self.next_seq not in self.ahead:
            raise PayloadError(
                f"more than {MAX_AHEAD} chunks of edge '{ref.edge}' wait for chunk "
                f"{self.next_seq}, which is missing; look at the producing stage"
            )
        return Verdict.ACCEPTED

    def take(self) -> list[Ref]:
        """The chunks whose turn has come, in order; each once."""
        taken = []
        while (ref := self.ahead.pop(self.next_seq, None)) is not None:
            taken.append(ref)
            self.next_seq += 1
        return taken

    def check_integrity(self) -> None:
        """Raise AssertionError if a chunk waits that should not, or under another's number."""
        if any(seq != ref.seq or seq <= self.next_seq for seq, ref in self.ahead.items()):
            raise AssertionError("a chunk waits whose turn has come")
        if self.end_seq is not None and max(self.ahead, default=0) > self.end_seq:
            raise AssertionError("a chunk waits behind the end of its stream")

    def beyond_end(self) -> list[Ref]:
        """Chunks that wait behind an end which arrived after them; they are forgotten here."""
        if self.end_seq is None:
            return []
        beyond = [seq for seq in self.ahead if seq > self.end_seq]
        return [self.ahead.pop(seq) for seq in beyond]
