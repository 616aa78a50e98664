"""A stage's worker that hands caches on, or takes them in; the engines are plain tensors."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import torch

from antiphon.core.kv_handoff import KvSettings, KvTransfer
from antiphon.core.options import InEdge, OutEdge
from antiphon.core.prompt_plan import PromptPlan
from antiphon.core.tickets import Arrived, KvShip, StageNews
from antiphon.payload.adapters import Input, OutputNeeds, StageContext
from antiphon.payload.kv import KvSnapshot
from antiphon.payload.ref import Ref
from antiphon.payload.types import Payload, Scalar, per_token
from antiphon.worker.kv_layout import BlockShape
from paged import Engine
from tiny_adapters import CALLS, Broken
from worker_bench import Bench

SHAPE = BlockShape(4, 2, 3)
BLOCKS = ((7, 2, 3),)
LENGTH = 10
IDS = tuple(range(100, 111))
RECOMPUTE = KvSettings(on_failure="recompute")


# --- sending --------------------------------------------------------------------------------------


def edge(
    name: str, adapter: str, settings: KvSettings | None = None, *, blocks: bool = True, **opt: Any
) -> OutEdge:
    kv = KvTransfer("prefill_finished")
    return OutEdge(
        name, adapter, opt, kv=kv, kv_settings=settings or KvSettings(), kv_blocks=blocks
    )


EDGES = (
    edge("kv", "worker_bench:QuietOut"),
    edge("kv-none", "tiny_adapters:TokensOut"),
    edge("kv-ids", "tiny_adapters:TokensOut", RECOMPUTE),
    edge("kv-many", "tiny_adapters:PartsOut"),
    edge("kv-tokens", "tiny_adapters:TokensOut", blocks=False),
    edge("kv-sum", "tiny_adapters:TokensOut", KvSettings(checksum=True)),
    edge("kv-rows", "tiny_adapters:RowsOut"),
    edge("kv-open", "kv_bench:Reserved"),
    edge("kv-broken", "tiny_adapters:TokensOut", fail="end"),
)


class Reserved:
    """What it makes cannot be sent."""

    needs = OutputNeeds()

    def __init__(self, context: StageContext) -> None:
        pass

    def open(self, uid: str, params: Mapping[str, Scalar]) -> Reserved:
        return self

    def on_end(self) -> Sequence[Payload]:
        return [Payload({"kv.0": per_token(torch.zeros(1))})]


class Shipping(Bench):
    """A stage with many kv edges, of which a real one has one."""

    def __init__(self, **how: Any) -> None:
        super().__init__(outputs=EDGES, **how)
        self.engine = Engine((SHAPE,))
        self.filled = self.engine.fill(BLOCKS, LENGTH)
        self.io.attach_caches(self.engine.caches)
        self._generation = 0

    def order(self, uid: str = "a", edge: str = "kv", **over: Any) -> KvShip:
        self._generation += 1
        given = {"length": LENGTH, "token_ids": IDS, "block_ids": BLOCKS} | over
        return KvShip(uid, edge, 0, self._generation, **given)

    def ship(self, uid: str = "a", edge: str = "kv", **over: Any) -> StageNews:
        return self.work(ships=[self.order(uid, edge, **over)])

    def cache_of(self, ref: Ref) -> list[torch.Tensor]:
        """Keys and values by layer, as the consumer finds them."""
        arrived = self.take(ref).cache
        assert arrived is not None
        target = Engine((SHAPE,))
        target.caches.check(arrived)
        target.caches.load(arrived, BLOCKS, 0, arrived.header.length)
        return target.stored(BLOCKS, arrived.header.length)


def ref_of(news: StageNews) -> Ref:
    """Of the one cache that has been stored."""
    (ack,) = news.acks
    assert (ack.error, news.failed, news.refs) == (None, [], [])
    assert ack.ref is not None
    return ack.ref


def refusal(news: StageNews) -> str:
    """Code of the one error that answers; the request itself has not failed."""
    (ack,) = news.acks
    assert (ack.ref, news.failed, news.refs) == (None, [], [])
    assert ack.error is not None
    return ack.error.code


# --- receiving ------------------------------------------------------------------------------------

GIVEN: list[Payload] = []  # what adapters were given


class CacheIn:
    """The prompt is what the payload says. Parameters change what is made of it."""

    def __init__(self, context: StageContext) -> None:
        GIVEN.clear()

    def open(self, uid: str, params: Mapping[str, Scalar]) -> _CacheIn:
        return _CacheIn(params)


class _CacheIn:
    def __init__(self, params: Mapping[str, Scalar]) -> None:
        self._params = params

    def on_payload(self, payload: Payload, *, last: bool) -> Input:
        GIVEN.append(payload)
        if self._params.get("broken"):
            raise Broken("payload")
        ids = list(payload.token_ids[: int(self._params.get("length", 1 << 20))])
        if (wrong := self._params.get("wrong")) is not None:
            ids[int(wrong)] += 1
        salt = self._params.get("salt")
        plan = PromptPlan(tuple(ids), salt=None if salt is None else str(salt))
        return Input(None if self._params.get("planless") else plan, cache=payload.cache)

    def on_end(self) -> Input:
        CALLS["cache end"] += 1
        return Input()


# What each payload's tensor is known by, and whether those before it were still there.
WATCHED: list[tuple[weakref.ref[torch.Tensor], list[bool]]] = []


class WatchIn:
    """Keeps nothing."""

    def __init__(self, context: StageContext) -> None:
        WATCHED.clear()

    def open(self, uid: str, params: Mapping[str, Scalar]) -> WatchIn:
        return self

    def on_payload(self, payload: Payload, *, last: bool) -> Input:
        alive = [tensor() is not None for tensor, _ in WATCHED]
        WATCHED.append((weakref.ref(payload.fields["n"].tensor), alive))
        return Input(PromptPlan((1, 2)))

    def on_end(self) -> Input:
        return Input()


class Receiving(Bench):
    """A stage that takes caches in; with `positions` one whose model is given keys and values."""

    def __init__(self, *, positions: bool = False) -> None:
        adapters = "kv_bench"
        edges = (
            InEdge("kv", f"{adapters}:CacheIn", kv=True),
            InEdge("watch", f"{adapters}:WatchIn"),
        )
        super().__init__(inputs=edges)
        self.source = Engine((SHAPE,))
        self.filled = self.source.fill(BLOCKS, LENGTH)
        self.engine = Engine((SHAPE,))
        if not positions:
            self.io.attach_caches(self.engine.caches)

    def sent(self, *, blocks: bool = True, salt: str | None = None) -> KvSnapshot:
        return self.source.caches.extract(BLOCKS, LENGTH, IDS, salt, blocks=blocks).wait()

    def announce(
        self, cache: KvSnapshot | None = None, *, key: str = "k", recompute: bool = False
    ) -> Ref:
        """Another stage has stored a cache."""
        cache = self.sent() if cache is None else cache
        payload = Payload({"n": per_token(torch.ones(1))}, cache=cache, token_ids=cache.token_ids)
        return self._announced(self.store(key, payload, "kv"), recompute)

    def store_raw(self, data: bytearray, like: Ref) -> None:
        assert like.key is not None
        self.other.delete([like.key])
        self.other.put(like.key, [data])

    def _announced(self, ref: Ref, recompute: bool) -> Ref:
        return msgspec.structs.replace(ref, token_ids=IDS if recompute else ())


def arrived(news: StageNews) -> Arrived:
    assert news.failed == []
    (found,) = news.arrived
    return found
