"""Hands a KV cache over again and again, from blocks of a real engine to other blocks of it."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from antiphon.connector.base import Connector
from antiphon.connector.registry import make_connector
from antiphon.connector.runs import new_run_token
from antiphon.core.kv_handoff import KvTransfer
from antiphon.core.options import ConnectorSpec, OutEdge
from antiphon.payload import wire
from antiphon.payload.kv import KvSnapshot
from antiphon.payload.types import Payload
from antiphon.pipeline.stage_deployment import Device, StageDeployment
from antiphon.pipeline.topology import Stage, StageKind
from antiphon.stage.engine import StageEngine
from antiphon.stage.resolve import engine_args
from antiphon.stage.spec import StageSpec
from antiphon.worker.kv_cache import KvCaches
from antiphon.worker.mixin import StageWorkerMixin

LAYERS = 30

_MIB = 1 << 20
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 192,
    "intermediate_size": 64,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 100,
    "max_position_embeddings": 1 << 20,
    "tie_word_embeddings": True,
    "dtype": "float32",
}


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds that the parts of one round took."""

    copy: float  # plain, of as many bytes as the cache has
    extract: float
    put: float  # with encode
    take: float  # with decode
    load: float

    def phases(self) -> tuple[float, ...]:
        """In the order of PHASES."""
        whole = self.extract + self.put + self.take + self.load
        return (self.extract + self.put, self.put + self.take, self.load, whole)


class CacheWorker:
    """What vLLM adds to the stage's worker: its caches, for the benchmark."""

    def bench_caches(self) -> KvCaches:
        """Those of the stage, which has a kv edge."""
        assert isinstance(self, StageWorkerMixin)  # noqa: S101  vLLM has made it a part of one
        caches = self.stage_runner.stage_caches
        assert caches is not None  # noqa: S101
        return caches


class Cache:
    """A cache of at least `size` bytes in the engine's blocks, and other blocks for its copy."""

    def __init__(self, caches: KvCaches, size: int) -> None:
        self.caches = caches
        (group,) = caches.own.groups
        dtype = wire.DTYPES[caches.own.dtype]
        elements = 2 * group.block_size * group.num_kv_heads * group.head_size
        count = -(-size // (len(group.layers) * elements * dtype.itemsize))
        # The last block is partly filled, as it mostly is.
        self.length = count * group.block_size - group.block_size // 2
        self.token_ids = tuple(index % 100 for index in range(self.length))
        drawn = torch.Generator().manual_seed(0)
        order = (1 + torch.randperm(2 * count, generator=drawn)).tolist()
        self.here, self.there = (order[:count],), (order[count:],)
        shape = (len(group.layers), count, elements)
        self.contents = torch.rand(shape, generator=drawn, dtype=dtype)
        self.target = torch.zeros_like(self.contents)  # of the plain copy
        self.nbytes = self.contents.nbytes
        caches.load(self.snapshot(self.contents), self.here, 0, self.length)

    def snapshot(self, contents: torch.Tensor) -> KvSnapshot:
        """Of blocks [layers, num_blocks, elements of a block]."""
        header = msgspec.structs.replace(self.caches.own, length=self.length)
        layers = (tuple((layer,) for layer in contents),)
        return KvSnapshot(header, layers, self.token_ids)

    def wipe(self) -> None:
        """Nothing is left of an earlier copy."""
        nothing = self.snapshot(torch.zeros_like(self.contents))
        self.caches.load(nothing, self.there, 0, self.length)

    def has_arrived(self) -> bool:
        """Whether the other blocks hold the same."""
        copy = self.caches.extract(self.there, self.length, self.token_ids, None, blocks=True)
        (layers,) = copy.wait().layers
        found = zip(layers, self.contents, strict=True)
        return all(torch.equal(torch.cat(pieces), layer) for pieces, layer in found)


class HandOver:
    """Two connectors between which one cache is handed over again and again."""

    def __init__(self, cache: Cache, kind: str, device: Device) -> None:
        self.exact = True
        self._cache = cache
        run, budget = new_run_token(), 2 * cache.nbytes
        self._producer, self._consumer = (make_connector(kind, run, budget) for _ in range(2))
        # On one thread of a CPU nothing waits: what other processes do meanwhile does not count.
        alone = device == "cpu" and torch.get_num_threads() == 1
        self._clock = time.thread_time if alone else time.perf_counter
        self._settle: Callable[[], None] = _nothing if device == "cpu" else torch.cuda.synchronize

    def __enter__(self) -> HandOver:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()
        self._producer.close()

    def rounds(self, count: int) -> list[Times]:
        """The first round's times and `count` more; between them is a warm-up.

        Whether the cache arrives is checked in the first round and after the last one.
        """
        first = self._checked_round()
        self._round()
        measured = [self._round() for _ in range(count)]
        self._checked_round()
        return [first, *measured]

    def _checked_round(self) -> Times:
        self._cache.wipe()
        times = self._round()
        self.exact = self.exact and self._cache.has_arrived()
        return times

    def _round(self) -> Times:
        cache, clock = self._cache, self._clock
        start = clock()
        cache.target.copy_(cache.contents)
        copied = clock()
        payload = _extract(cache)
        extracted = clock()
        _put(self._producer, payload)
        put = clock()
        snapshot = _take(self._consumer)
        taken = clock()
        cache.caches.check(snapshot)
        cache.caches.load(snapshot, cache.there, 0, cache.length)
        self._settle()
        loaded = clock()
        return Times(
            copied - start, extracted - copied, put - extracted, taken - put, loaded - taken
        )


def _extract(cache: Cache) -> Payload:
    ids = cache.token_ids
    copy = cache.caches.extract(cache.here, cache.length, ids, None, blocks=True)
    return Payload({}, cache=copy.wait(), token_ids=ids)


def _put(connector: Connector, payload: Payload) -> None:
    connector.put("cache", wire.encode(payload, limits=wire.CACHE_LIMITS))


def _take(connector: Connector) -> KvSnapshot:
    cache = wire.decode(connector.take("cache"), limits=wire.CACHE_LIMITS).cache
    assert cache is not None  # noqa: S101  it has just been encoded
    return cache


def _nothing() -> None:
    """There is nothing to wait for."""


@contextmanager
def engine_caches(largest: int, device: Device) -> Iterator[KvCaches]:
    """The caches of an engine that has room for two caches of `largest` bytes."""
    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as folder:
        config = {**MODEL, "num_hidden_layers": LAYERS}
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        engine = StageEngine(_spec(folder, 2 * largest, device))
        try:
            (caches,) = engine.call_workers("bench_caches")
            assert isinstance(caches, KvCaches)  # noqa: S101
            yield caches
        finally:
            engine.shutdown()


def _spec(model: str, room: int, device: Device) -> StageSpec:
    stage = Stage("kv", StageKind.AR, model=f"{__name__}:main")  # not asked: `model` is there
    settings = StageDeployment(
        device=device,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=1,
        max_num_batched_tokens=256,
        kv_cache_bytes=room + 32 * _MIB,  # what rounding up to blocks takes
        async_scheduling=False,
        seed=0,
        engine_args={
            "load_format": "dummy",
            "block_size": 128,
            "worker_extension_cls": f"{__name__}.{CacheWorker.__name__}",
        },
    )
    adapter = "antiphon.models.kv_adapters:CacheOutput"
    edge = OutEdge("cache", adapter, kv=KvTransfer("prefill_finished"), kv_blocks=True)
    return StageSpec(
        name=stage.name,
        kind=stage.kind,
        model=model,
        engine_args=engine_args(stage, settings),
        connector=ConnectorSpec("inproc", new_run_token()),
        outputs=(edge,),
    )
