"""The chunks of a stage without an engine: those it has stored, and those it has been given."""

from __future__ import annotations

from collections.abc import Container, MutableSet

from antiphon.core.chunks import MAX_AHEAD
from antiphon.payload.ref import Ref
from antiphon.stage.messages import Discard, Used


class FakeStore:
    """`keys` are the payloads that the run's connector holds."""

    def __init__(self, stage: str, keys: MutableSet[str]) -> None:
        self.outstanding: set[str] = set()  # stored, and neither used up nor discarded
        self._stage = stage
        self._keys = keys
        self._seqs: dict[tuple[str, str, int], int] = {}
        # By uid: edges and keys that it has not taken; no key: a lost cache's token ids.
        self._given: dict[str, list[tuple[str, str | None]]] = {}
        # By uid: the numbers of the chunks that it has been given, and of the last one.
        self._seen: dict[str, set[int]] = {}
        self._ends: dict[str, int] = {}
        self._used: dict[str, list[str]] = {}  # by edge, not reported

    def put(
        self, uid: str, edge: str, epoch: int, seq: int | None, *, end: bool, empty: bool
    ) -> Ref:
        """Store a payload; seq counts by itself unless given."""
        if seq is None:
            seq = self._seqs.get((uid, edge, epoch), 0)
        self._seqs[uid, edge, epoch] = seq + 1
        if empty:
            return Ref(uid, edge, seq, end, epoch=epoch)
        key = f"{self._stage}/{uid}/{edge}/{epoch}/{seq}"
        self._keys.add(key)
        self.outstanding.add(key)
        return Ref(uid, edge, seq, end, key, epoch=epoch)

    def returned(self, command: Used | Discard) -> None:
        """Chunks that were used up, or that nobody will take."""
        for key in command.keys:
            if key not in self.outstanding:
                raise AssertionError(f"stage '{self._stage}' was told twice of {key}")
            self.outstanding.remove(key)
        if isinstance(command, Discard):
            for key in command.keys:
                self._keys.discard(key)

    def delivered(self, uid: str, ref: Ref, epoch: int | None) -> None:
        """A chunk for a request in this epoch; None: the request is not there, nobody takes it."""
        if ref.key is not None and ref.key not in self._keys:
            raise AssertionError(f"payload {ref.key} is not stored")
        if epoch is None:
            self._use(ref.edge, ref.key)
            return
        if ref.epoch != epoch:
            raise AssertionError(f"{uid} is in epoch {epoch} and was given a chunk of {ref.epoch}")
        seen = self._seen.setdefault(uid, set())
        if ref.end:
            self._ends[uid] = ref.seq
        if ref.seq in seen or max(ref.seq, *seen, 0) > self._ends.get(uid, MAX_AHEAD):
            raise AssertionError(f"{uid} was given a chunk twice or behind the end of its input")
        seen.add(ref.seq)
        if not ref.empty:
            self._given.setdefault(uid, []).append((ref.edge, ref.key))

    def holds(self, uid: str) -> bool:
        """Whether the request has been given chunks that it has not taken."""
        return uid in self._given

    def complete(self, uid: str) -> bool:
        """Whether all of the request's input has come; in a join its end may come first."""
        return len(self._seen.get(uid, ())) == self._ends.get(uid, -2) + 1

    def take(self, uid: str) -> None:
        """The request takes what it has been given, and needs it no more."""
        for edge, key in self._given.pop(uid, []):
            self._use(edge, key)

    def forget(self, uid: str) -> None:
        """The request is over."""
        self.take(uid)
        self._seen.pop(uid, None)
        self._ends.pop(uid, None)

    def end(self) -> None:
        """The stage's process has ended: what it was given stays where it was stored."""
        self._given.clear()
        self._seen.clear()
        self._ends.clear()
        self._used.clear()

    def check_integrity(self, uids: Container[str]) -> None:
        """Raise AssertionError if something is kept for a request that is not among `uids`."""
        kept = self._given.keys() | self._seen.keys() | self._ends.keys()
        if any(uid not in uids for uid in kept):
            raise AssertionError(f"stage '{self._stage}' keeps input of a request that is over")

    def take_used(self) -> dict[str, list[str]]:
        """What has been used up since the last call."""
        used, self._used = self._used, {}
        return used

    def _use(self, edge: str, key: str | None) -> None:
        if key is not None:
            self._keys.discard(key)
            self._used.setdefault(edge, []).append(key)
