"""Chunks on their way: forwarded to their consumers, and known until these have used them up."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field

from antiphon.orchestrator.replica import Replica
from antiphon.payload.ref import Ref
from antiphon.stage.messages import Command, Deliver, Discard, Used

Send = Callable[[Replica, Command], None]


@dataclass(slots=True)
class _Chunk:
    producer: Replica | None  # None: it has ended since; if it serves again, it knows of nothing
    holders: int  # units that have not used it up
    on_used: Callable[[], None]


@dataclass(slots=True)
class Crossing:
    """What has crossed an edge for one part of its producer; times are clock values."""

    first_s: float  # the first chunk; the end if there was none
    last_s: float = 0.0
    chunks: int = 0  # that brought something
    bytes: int = 0
    consumer_parts: list[int] = field(default_factory=list)
    first_used_s: float | None = None
    last_used_s: float | None = None
    ended: bool = False  # nothing follows

    def sent(self, ref: Ref, now: float) -> None:
        """A chunk was stored."""
        if not ref.empty:
            self.first_s = self.first_s if self.chunks else now
            self.chunks += 1
        self.last_s = now
        self.bytes += ref.nbytes
        self.ended |= ref.end

    def used(self, now: float) -> None:
        """A chunk was used up."""
        self.first_used_s = now if self.first_used_s is None else self.first_used_s
        self.last_used_s = now


class Deliveries:
    """One table: who holds a chunk, and who stored it. `gone` are the replicas that have ended.

    Companions hold one chunk together. It is used up when all of them have said so.
    """

    def __init__(self, send: Send, gone: Container[Replica]) -> None:
        self._send = send
        self._gone = gone
        self._under_way: dict[Replica, dict[str, _Chunk]] = {}  # by consumer and key
        self._outgoing: dict[Replica, list[tuple[str, Ref]]] = {}  # until `flush`, by consumer

    def deliver(
        self,
        producer: Replica,
        consumer: Replica,
        uids: tuple[str, ...],
        ref: Ref,
        on_used: Callable[[], None] = lambda: None,
    ) -> None:
        """Forward a ref to the units `uids` of `consumer`, with the next `flush`.

        `on_used` is called when all of them have used the chunk up or let go of it.
        """
        if ref.key is not None:
            if consumer in self._gone:
                self.discard(producer, ref)
                return
            chunk = _Chunk(producer, len(uids), on_used)
            self._under_way.setdefault(consumer, {})[ref.key] = chunk
        self._outgoing.setdefault(consumer, []).extend((uid, ref) for uid in uids)

    def flush(self) -> None:
        """Send what has been collected: one message per consumer."""
        outgoing, self._outgoing = self._outgoing, {}
        for replica, items in outgoing.items():
            self._send(replica, Deliver(items))

    def discard(self, producer: Replica, ref: Ref) -> None:
        """A chunk that nobody will take."""
        if ref.key is not None:
            self._send(producer, Discard([ref.key]))

    def used(self, consumer: Replica, edge: str, keys: list[str]) -> None:
        """A unit of `consumer` needs each of these chunks no more: it may be room for others."""
        delivered = self._under_way.get(consumer, {})
        over: dict[Replica, list[str]] = {}  # by producer
        for key in keys:
            if (chunk := delivered.get(key)) is None:
                continue
            chunk.holders -= 1
            if chunk.holders == 0:
                del delivered[key]
                if chunk.producer is not None:
                    over.setdefault(chunk.producer, []).append(key)
                chunk.on_used()
        for producer, returned in over.items():
            self._send(producer, Used(edge, returned))

    def lost(self, replica: Replica) -> None:
        """`replica` has ended: what it was given may still lie where it was stored, and nobody is
        told of the use of what it has stored itself.
        """
        given = self._under_way.pop(replica, {})
        for chunks in self._under_way.values():
            for chunk in chunks.values():
                if chunk.producer == replica:
                    chunk.producer = None
        for key, chunk in given.items():
            if chunk.producer is not None:
                self._send(chunk.producer, Discard([key]))

    def check_integrity(self) -> None:
        """Raise AssertionError if a chunk is under way to nobody, or a ref has not been sent on."""
        if self._outgoing:
            raise AssertionError("refs have been collected and not sent on")
        for consumer, chunks in self._under_way.items():
            if any(chunk.holders < 1 for chunk in chunks.values()):
                raise AssertionError(f"a chunk is under way to nobody at {consumer}")
            if chunks and consumer in self._gone:
                raise AssertionError(f"a chunk is under way to {consumer}, which is gone")

    def __len__(self) -> int:
        """Chunks that consumers have been given and have not used up."""
        return sum(len(keys) for keys in self._under_way.values())
