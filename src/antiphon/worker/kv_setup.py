"""From upstream's cache configuration to `KvCaches`: which caches can cross, and how they lie.

Seam: `GPUModelRunner.initialize_kv_cache`, after which each attention layer has its cache bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheSpec, KVQuantMode

from antiphon.errors import DeploymentError, TopologyError
from antiphon.payload.kv import KvGroup
from antiphon.worker.device import DeviceOps
from antiphon.worker.kv_cache import GroupCaches, KvCaches
from antiphon.worker.kv_layout import (
    BlockLayout,
    BlockShape,
    LayerCache,
    Write,
    check_layout,
    probe_layout,
)


@runtime_checkable
class CacheWriter(Protocol):
    """An attention implementation that writes its cache in a step of its own."""

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None: ...


class AttentionLayer(Protocol):
    """What is read of upstream's attention layers."""

    impl: Any
    kv_cache: torch.Tensor


def make_caches(
    config: KVCacheConfig,
    layers: Mapping[str, AttentionLayer],
    ops: DeviceOps,
    dtype: torch.dtype,
    fingerprint: Callable[[], str],
) -> KvCaches:
    """The caches that upstream has just allocated and that nobody uses yet.

    `layers` are the engine's, by name; `dtype` is that of the keys and values that the model
    computes; `fingerprint` gives its weights'. Raises TopologyError for a model whose caches cannot
    cross, DeploymentError where a setting stands in the way. Both name the layer.
    """
    if not config.kv_cache_groups:
        raise TopologyError("The stage's model has no KV cache that could be handed over.")
    groups = [
        _group(tuple(group.layer_names), group.kv_cache_spec, config.num_blocks, layers, dtype)
        for group in config.kv_cache_groups
    ]
    return KvCaches(groups, config.num_blocks, fingerprint(), ops)


def _group(
    names: tuple[str, ...],
    spec: KVCacheSpec,
    num_blocks: int,
    layers: Mapping[str, AttentionLayer],
    dtype: torch.dtype,
) -> GroupCaches:
    full = _checked(names[0], spec)
    shape = BlockShape(full.block_size, full.num_kv_heads, full.head_size)
    layout: BlockLayout | None = None
    for name in names:
        write = _writer(name, layers[name])
        cache = LayerCache(name, layers[name].kv_cache, num_blocks, write, dtype)
        if layout is None:
            layout = probe_layout(cache, shape)
        if not check_layout(cache, layout):
            raise DeploymentError(
                f"Layer '{name}' stores its KV cache in another way than '{names[0]}', with which"
                f" it shares its blocks; choose one attention backend for all layers, or take the"
                f" kv edge out."
            )
    assert layout is not None  # noqa: S101  upstream makes no group without layers
    group = KvGroup(
        layers=names,
        num_kv_heads=shape.num_kv_heads,
        head_size=shape.head_size,
        block_size=shape.block_size,
        layout=layout.fingerprint,
    )
    blocks = tuple(layout.blocks(layers[name].kv_cache, num_blocks) for name in names)
    return GroupCaches(group, layout, blocks)


def _checked(name: str, spec: KVCacheSpec) -> FullAttentionSpec:
    """The spec if caches of its kind can cross."""
    # Not isinstance: subclasses store something else (latents, sinks, windows).
    if type(spec) is not FullAttentionSpec:
        kind = type(spec).__name__.removesuffix("Spec")
        raise TopologyError(
            f"Layer '{name}' keeps a cache of the kind {kind}; a kv edge hands over full attention"
            f" only: take the edge out, or use a model whose layers all have full attention."
        )
    if spec.kv_quant_mode is not KVQuantMode.NONE or not spec.dtype.is_floating_point:
        raise DeploymentError(
            f"The KV cache of layer '{name}' is quantized, which a kv edge cannot hand over; set"
            f" kv_cache_dtype to 'auto' in the stage's engine arguments."
        )
    if spec.head_size_v != spec.head_size or spec.tokens_per_state != 1:
        raise TopologyError(
            f"Layer '{name}' keeps keys and values of different sizes, which a kv edge cannot hand"
            f" over; take the edge out, or use another model."
        )
    return spec


def _writer(name: str, layer: AttentionLayer) -> Write:
    impl = layer.impl
    backend = type(impl).__name__
    if not isinstance(impl, CacheWriter):
        raise DeploymentError(
            f"Layer '{name}' computes with {backend}, which does not write its cache in a step of"
            f" its own, so its layout cannot be found out; choose another attention backend."
        )

    def write(keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        try:
            impl.do_kv_cache_update(layer, keys, values, layer.kv_cache, slots)
        except Exception as error:  # foreign kernels
            raise DeploymentError(
                f"The cache layout of layer '{name}' ({backend}) cannot be found out:"
                f" {type(error).__name__}: {error}; choose another attention backend."
            ) from error

    return write
