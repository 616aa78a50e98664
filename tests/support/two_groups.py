"""An engine with two KV groups, a request's cache in it, and the way to another engine."""

from __future__ import annotations

from typing import Any

from antiphon.payload import wire
from antiphon.payload.kv import KvSnapshot
from antiphon.payload.types import Payload
from antiphon.worker.kv_layout import BlockShape
from paged import Engine

SHAPE = BlockShape(4, 2, 3)
WIDE = BlockShape(8, 1, 5)  # a second group, of larger blocks
LENGTH = 10
# Three blocks of 4 and two of 8 tokens hold 10 tokens.
HERE = ((7, 2, 3), (5, 1))
THERE = ((1, 9, 4), (6, 2))
IDS = tuple(range(100, 100 + LENGTH + 1))


def engine(**how: Any) -> Engine:
    return Engine((SHAPE, WIDE), **how)


def sent(
    source: Engine, length: int = LENGTH, *, blocks: bool = True, ids: Any = HERE
) -> KvSnapshot:
    token_ids = tuple(range(100, 100 + length + 1))
    return source.caches.extract(ids, length, token_ids, None, blocks=blocks).wait()


def crossed(snapshot: KvSnapshot, *, checksum: bool = True) -> KvSnapshot:
    """What arrives of it."""
    payload = Payload({}, cache=snapshot, token_ids=snapshot.token_ids)
    arrived = wire.decode(bytearray().join(wire.encode(payload, checksum=checksum))).cache
    assert arrived is not None
    return arrived
