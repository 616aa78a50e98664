"""Chunks on their way: forwarded to their consumers, and known until these have used them up."""

from __future__ import annotations

from collections.abc import Callable, Container

from antiphon.payload.ref import Ref
from antiphon.stage.messages import Command, Deliver, Discard, Used

Send = Callable[[str, Command], None]


class Deliveries:
    """One table: who holds a chunk, and who stored it. `gone` are the stages that have ended."""

    def __init__(self, send: Send, gone: Container[str]) -> None:
        self._send = send
        self._gone = gone
        self._under_way: dict[str, dict[str, str]] = {}  # consumer: key of a chunk: its producer
        self._outgoing: dict[str, list[tuple[str, Ref]]] = {}  # until `flush`, by consumer

    def deliver(self, producer: str, consumer: str, uid: str, ref: Ref) -> None:
        """Forward a ref to the unit `uid` of `consumer`, with the next `flush`."""
        if ref.key is not None:
            if consumer in self._gone:
                self.discard(producer, ref)
                return
            self._under_way.setdefault(consumer, {})[ref.key] = producer
        self._outgoing.setdefault(consumer, []).append((uid, ref))

    def flush(self) -> None:
        """Send what has been collected: one message per consumer."""
        outgoing, self._outgoing = self._outgoing, {}
        for stage, items in outgoing.items():
            self._send(stage, Deliver(items))

    def discard(self, producer: str, ref: Ref) -> None:
        """A chunk that nobody will take."""
        if ref.key is not None:
            self._send(producer, Discard([ref.key]))

    def used(self, consumer: str, edge: str, keys: list[str]) -> None:
        """`consumer` needs these chunks no more: their producer has room for others."""
        delivered = self._under_way.get(consumer, {})
        known = [(delivered.pop(key), key) for key in keys if key in delivered]
        for producer in dict.fromkeys(producer for producer, _ in known):
            self._send(producer, Used(edge, [key for p, key in known if p == producer]))

    def lost(self, consumer: str) -> None:
        """`consumer` has ended: what it was given may still lie where it was stored."""
        for key, producer in self._under_way.pop(consumer, {}).items():
            self._send(producer, Discard([key]))

    def __len__(self) -> int:
        """Chunks that consumers have been given and have not used up."""
        return sum(len(keys) for keys in self._under_way.values())
