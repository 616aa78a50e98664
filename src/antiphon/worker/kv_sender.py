"""Stores the caches that leave a stage, and answers each order with what became of it.

Every `KvShip` is answered once, by a ref or by the reason why there is none: the scheduler holds
the request's blocks until then. As with chunks, what cannot be stored now waits for an ordered
retry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from antiphon.connector.base import Buffer, Connector
from antiphon.core.options import OutEdge
from antiphon.core.retry import RetryPolicy
from antiphon.core.tickets import KvAck, KvShip, StageNews
from antiphon.errors import (
    AdapterError,
    AntiphonError,
    ConnectorError,
    KVTransferError,
    without_frames,
)
from antiphon.payload import wire
from antiphon.payload.ref import Ref
from antiphon.payload.types import Payload
from antiphon.worker.guard import raised
from antiphon.worker.kv_cache import KvCaches, KvCopy
from antiphon.worker.outlets import Outlet, ask_for_retry


@dataclass(slots=True)
class _Waiting:
    """A cache that the connector does not hold yet; its parts may view the engine's own."""

    ship: KvShip
    ref: Ref  # its size is not known yet
    parts: Sequence[Buffer]
    attempts: int = 0
    wait_s: float = 0.0  # until the next attempt


class KvSender:
    """One per stage; `edges` are its outgoing ones, of which those with `kv` are meant."""

    def __init__(self, connector: Connector, policy: RetryPolicy, edges: Iterable[OutEdge]) -> None:
        self._connector = connector
        self._policy = policy
        self._edges = {edge.name: edge for edge in edges if edge.kv is not None}
        self._waiting: dict[int, _Waiting] = {}  # by generation

    def __contains__(self, edge: str) -> bool:
        """Whether caches leave on this edge."""
        return edge in self._edges

    def extract(self, ship: KvShip, caches: KvCaches | None) -> KvCopy | AntiphonError:
        """Start copying what is to be shipped, or why it cannot be.

        To be called before the forward of the order's step: the blocks hold what they should now.
        """
        edge = self._edges.get(ship.edge)
        if edge is None or caches is None:
            return KVTransferError(f"The stage hands no caches over on edge '{ship.edge}'.")
        ids, blocks = ship.block_ids, edge.kv_blocks
        try:
            return caches.extract(ids, ship.length, ship.token_ids, ship.salt, blocks=blocks)
        except KVTransferError as error:
            return without_frames(error)

    def ship(
        self, ship: KvShip, copy: KvCopy | AntiphonError, outlet: Outlet | None, news: StageNews
    ) -> None:
        """Store a cache, together with what the outlet's adapter makes of its request.

        Waits for the copy. Without an outlet the request sends nothing, or nothing more.
        """
        if (error := raised(self._ship, ship, copy, outlet, news)) is not None:
            self._refuse(ship, error, news)

    @property
    def shortest_wait_s(self) -> float | None:
        """Until the next attempt is due; None if nothing waits."""
        return min((waiting.wait_s for waiting in self._waiting.values()), default=None)

    def retry(self, passed_s: float, news: StageNews) -> None:
        """Time has passed: store what could not be stored, where it is its turn."""
        for waiting in list(self._waiting.values()):
            waiting.wait_s -= passed_s
            if waiting.wait_s > 0:
                ask_for_retry(news, waiting.wait_s)
                continue
            try:
                self._store(waiting, news)
            except ConnectorError as error:
                self._refuse(waiting.ship, error, news)

    def drop(self, uid: str, news: StageNews) -> None:
        """The request's cache is not wanted any more: what waits is answered."""
        for waiting in [w for w in self._waiting.values() if w.ship.uid == uid]:
            del self._waiting[waiting.ship.generation]
            self._refuse(waiting.ship, KVTransferError("The request has ended."), news)

    @property
    def num_unsent(self) -> int:
        """Caches that wait for a retry."""
        return len(self._waiting)

    def check_integrity(self) -> None:
        """Raise AssertionError if something waits that has not been tried."""
        for generation, waiting in self._waiting.items():
            if generation != waiting.ship.generation or not waiting.attempts:
                raise AssertionError(f"hand-off {generation} waits without having been tried")

    def _ship(
        self, ship: KvShip, copy: KvCopy | AntiphonError, outlet: Outlet | None, news: StageNews
    ) -> None:
        if outlet is None:
            raise KVTransferError(f"The request sends nothing more on edge '{ship.edge}'.")
        outlet.over = True  # whatever comes of it: what leaves on this edge leaves now
        if isinstance(copy, AntiphonError):
            raise copy
        made = [*outlet.kept, *outlet.adapter.on_end()]
        outlet.kept.clear()
        if len(made) > 1:
            raise AdapterError(
                f"the adapter of edge '{ship.edge}' made {len(made)} payloads to go with a KV"
                f" cache; one is the most"
            )
        extra = made[0] if made else Payload({})
        payload = replace(extra, cache=copy.wait(), token_ids=ship.token_ids)
        settings = self._edges[ship.edge].kv_settings
        ref = Ref(
            ship.uid,
            ship.edge,
            seq=0,
            end=True,
            key=f"{ship.uid}/{ship.edge}/{ship.epoch}/kv{ship.generation}",
            fields=payload.specs(),
            epoch=ship.epoch,
            token_ids=ship.token_ids if settings.repeatable(ship.salt) else (),
        )
        parts = wire.encode(payload, limits=wire.CACHE_LIMITS, checksum=settings.checksum)
        self._store(_Waiting(ship, ref, parts), news)

    def _refuse(self, ship: KvShip, error: AntiphonError, news: StageNews) -> None:
        news.acks.append(KvAck(ship.uid, ship.generation, error=error.to_wire()))

    def _store(self, waiting: _Waiting, news: StageNews) -> None:
        """Raises ConnectorError once it is given up."""
        ship, ref = waiting.ship, waiting.ref
        assert ref.key is not None  # noqa: S101  `_ship` gave it one
        self._waiting.pop(ship.generation, None)
        try:
            nbytes = self._connector.put(ref.key, waiting.parts)
        except ConnectorError as error:
            waiting.attempts += 1
            delay = self._policy.next_delay(waiting.attempts)
            if delay is None:
                raise ConnectorError(
                    f"the KV cache of edge '{ref.edge}' could not be stored after"
                    f" {waiting.attempts} attempts, connector_bytes may be too small: {error}"
                ) from error
            waiting.wait_s = delay
            self._waiting[ship.generation] = waiting
            ask_for_retry(news, delay)
            return
        stored = msgspec.structs.replace(ref, nbytes=nbytes)
        news.acks.append(KvAck(ship.uid, ship.generation, ref=stored))
