"""Which engines can hand their caches over; the others are refused when they start."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVQuantMode,
    MambaSpec,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from antiphon.core.kv_handoff import KvTransfer
from antiphon.core.options import ConnectorSpec, InEdge, OutEdge, StageOptions
from antiphon.errors import AntiphonError, DeploymentError, TopologyError
from antiphon.worker.device import CpuOps, CudaOps, DeviceOps
from antiphon.worker.kv_cache import KvCaches
from antiphon.worker.kv_layout import BlockShape
from antiphon.worker.kv_runner import check_room, check_workers
from antiphon.worker.kv_setup import make_caches
from paged import BACKENDS, TURNED, Backend, Paged, drawn

NUM_BLOCKS = 6
SHAPE: dict[str, Any] = {"block_size": 8, "num_kv_heads": 2, "head_size": 4}
FULL = FullAttentionSpec(**SHAPE, dtype=torch.float32)
SIZES = BlockShape(8, 2, 4)


@dataclass
class Impl:
    """An attention implementation of our own."""

    paged: Paged
    fails: bool = False

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        if self.fails:
            raise RuntimeError("no kernel image")
        assert layer.impl is self
        assert kv_cache is self.paged.tensor
        self.paged.write(key, value, slot_mapping)


def layer(backend: Backend = TURNED, sizes: BlockShape = SIZES, **how: Any) -> Any:
    paged = Paged(sizes, NUM_BLOCKS, backend, **how)
    return SimpleNamespace(impl=Impl(paged), kv_cache=paged.tensor)


def config(*groups: tuple[list[str], KVCacheSpec]) -> KVCacheConfig:
    return KVCacheConfig(NUM_BLOCKS, [], [KVCacheGroupSpec(names, spec) for names, spec in groups])


def made(layers: dict[str, Any], *groups: tuple[list[str], KVCacheSpec]) -> KvCaches:
    return make_caches(config(*groups), layers, CpuOps(), torch.float32, lambda: "weights")


def test_several_groups_of_layers() -> None:
    other = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=3, dtype=torch.float32)
    layers = {"a": layer(), "b": layer(), "c": layer(BACKENDS[3], BlockShape(4, 1, 3))}
    caches = made(layers, (["a", "b"], FULL), (["c"], other))
    assert [group.layers for group in caches.own.groups] == [("a", "b"), ("c",)]
    assert [group.block_size for group in caches.own.groups] == [8, 4]
    assert not any(found.kv_cache.any() for found in layers.values())
    tokens, few = drawn(SIZES, 11), drawn(BlockShape(4, 1, 3), 11)
    for name in ("a", "b"):
        layers[name].impl.paged.fill([5, 1], tokens)
    layers["c"].impl.paged.fill([3, 1, 2], few)
    copied = caches.extract([[5, 1], [3, 1, 2]], 11, tuple(range(11)), None, blocks=False)
    (a, b), (c,) = copied.wait().layers
    assert torch.equal(a[0], tokens)
    assert torch.equal(b[0], tokens)
    assert torch.equal(c[0], few)


def test_kernels_with_smaller_blocks_than_the_scheduler() -> None:
    layers = {"a": layer(parts=4)}
    caches = made(layers, (["a"], FULL))
    tokens = drawn(SIZES, 19)
    layers["a"].impl.paged.fill([4, 1, 3], tokens)
    copied = caches.extract([[4, 1, 3]], 19, tuple(range(19)), None, blocks=False)
    assert torch.equal(copied.wait().layers[0][0][0], tokens)


# --- refused --------------------------------------------------------------------------------------

_DTYPE: dict[str, Any] = {"dtype": torch.float32}
KINDS: dict[str, tuple[KVCacheSpec, type[AntiphonError], str]] = {
    "sliding window": (
        SlidingWindowSpec(**SHAPE, **_DTYPE, sliding_window=16),
        TopologyError,
        "kind SlidingWindow",
    ),
    "chunked": (
        ChunkedLocalAttentionSpec(**SHAPE, **_DTYPE, attention_chunk_size=16),
        TopologyError,
        "kind ChunkedLocalAttention",
    ),
    "latents": (
        MLAAttentionSpec(block_size=8, num_kv_heads=1, head_size=4, **_DTYPE),
        TopologyError,
        "kind MLAAttention",
    ),
    "sinks": (
        SinkFullAttentionSpec(**SHAPE, **_DTYPE, sink_len=4),
        TopologyError,
        "kind SinkFullAttention",
    ),
    "state": (
        MambaSpec(block_size=8, shapes=((4,),), dtypes=(torch.float32,)),
        TopologyError,
        "kind Mamba",
    ),
    "mixed sizes": (
        UniformTypeKVCacheSpecs(block_size=8, kv_cache_specs={"a": FULL}),
        TopologyError,
        "kind UniformTypeKVCacheSpecs",
    ),
    "quantized": (
        FullAttentionSpec(
            **SHAPE, dtype=torch.float8_e4m3fn, kv_quant_mode=KVQuantMode.FP8_PER_TENSOR
        ),
        DeploymentError,
        "kv_cache_dtype to 'auto'",
    ),
    "bytes": (
        FullAttentionSpec(**SHAPE, dtype=torch.uint8),
        DeploymentError,
        "quantized",
    ),
    "two sizes": (
        FullAttentionSpec(**SHAPE, **_DTYPE, head_size_v=8),
        TopologyError,
        "different sizes",
    ),
}


@pytest.mark.parametrize(("spec", "error", "why"), KINDS.values(), ids=KINDS)
def test_caches_that_cannot_cross_are_refused_by_name(
    spec: KVCacheSpec, error: type[AntiphonError], why: str
) -> None:
    """In whichever group they are; the engine does not start."""
    layers = {"model.layers.0": layer(), "model.layers.1": layer()}
    with pytest.raises(error) as raised:
        made(layers, (["model.layers.0"], FULL), (["model.layers.1"], spec))
    assert "'model.layers.1'" in str(raised.value)
    assert why in str(raised.value)


def test_a_model_without_a_cache_is_refused() -> None:
    with pytest.raises(TopologyError, match="no KV cache"):
        made({})


def test_a_backend_that_writes_while_it_computes_is_refused() -> None:
    layers = {"a": SimpleNamespace(impl=object(), kv_cache=layer().kv_cache)}
    with pytest.raises(DeploymentError, match=r"'a' computes with object.*another attention"):
        made(layers, (["a"], FULL))


def test_a_backend_that_cannot_write_now_is_refused() -> None:
    layers = {"a": layer()}
    layers["a"].impl.fails = True
    with pytest.raises(DeploymentError, match=r"'a'.*RuntimeError: no kernel image"):
        made(layers, (["a"], FULL))


def test_layers_of_one_group_that_store_differently_are_refused() -> None:
    layers = {"a": layer(), "b": layer(BACKENDS[0])}
    with pytest.raises(DeploymentError, match="'b' stores its KV cache in another way than 'a'"):
        made(layers, (["a", "b"], FULL))


KV = KvTransfer("prefill_finished")
EDGES: dict[str, dict[str, Any]] = {
    "out": {"outputs": (OutEdge("e", "x:Y", kv=KV),)},
    "in": {"inputs": (InEdge("e", "x:Y", kv=True),)},
}


@pytest.mark.parametrize("edges", EDGES.values(), ids=EDGES)
def test_a_cache_in_several_workers_is_refused(edges: dict[str, Any]) -> None:
    options = StageOptions("talker", ConnectorSpec("inproc", "r"), **edges)
    check_workers(options, 1)
    with pytest.raises(DeploymentError, match="'talker' has the kv edge 'e' and 2 workers"):
        check_workers(options, 2)


def test_a_stage_without_a_kv_edge_may_have_several_workers() -> None:
    edges: dict[str, Any] = {"inputs": (InEdge("i", "x:Y"),), "outputs": (OutEdge("o", "x:Y"),)}
    check_workers(StageOptions("talker", ConnectorSpec("inproc", "r"), **edges), 8)


# --- room -----------------------------------------------------------------------------------------

PER_BLOCK = 2 * 2 * 4 * 4 * 8  # keys and values, heads, head size, float32, tokens


@pytest.mark.parametrize(
    ("max_model_len", "needed"),
    [(8, 2 * PER_BLOCK), (9, 4 * PER_BLOCK), (8 * 100, 2 * NUM_BLOCKS * PER_BLOCK)],
)
def test_a_connector_that_cannot_hold_a_longest_cache(max_model_len: int, needed: int) -> None:
    """Blocks are whole, no more than the engine has, and each of two layers has its own."""
    caches = config((["a", "b"], FULL))
    edge = OutEdge("e", "x:Y", kv=KV)

    def options(room: int) -> StageOptions:
        return StageOptions("talker", ConnectorSpec("inproc", "r", room), outputs=(edge,))

    check_room(options(needed), caches, max_model_len)
    with pytest.raises(DeploymentError, match=r"edge 'e' of stage 'talker'.*connector_bytes"):
        check_room(options(needed - 1), caches, max_model_len)
    none = StageOptions("talker", ConnectorSpec("inproc", "r", 1), outputs=(OutEdge("e", "x:Y"),))
    check_room(none, caches, max_model_len)


# --- CUDA -----------------------------------------------------------------------------------------


def test_the_cuda_operations_are_complete() -> None:
    """Abstract methods left open would be found on the GPU only."""
    assert issubclass(CudaOps, DeviceOps)
    assert CudaOps.__abstractmethods__ == frozenset()
    assert {"to_host", "take_blocks", "read_blocks", "write_blocks"} <= vars(CudaOps).keys()
