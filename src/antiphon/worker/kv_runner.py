"""The seam between upstream's v1 model runner and KV caches of other stages: taken into the
engine's own, or given to a generation model with its forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from antiphon.core.options import StageOptions
from antiphon.errors import DeploymentError, KVTransferError, TopologyError
from antiphon.upstream.kv_connector import CacheLoad, engine_key, register_loader, unregister_loader
from antiphon.worker.device import DeviceOps
from antiphon.worker.fingerprint import model_fingerprint
from antiphon.worker.kv_cache import KvCaches
from antiphon.worker.kv_model import GivenCaches
from antiphon.worker.kv_setup import make_caches
from antiphon.worker.stage_io import StageIO


class CacheRunnerMixin(GPUModelRunner):
    """What `StageRunnerMixin` does for edges that bring or take caches."""

    io: StageIO | None = None
    device_ops: DeviceOps
    stage_caches: KvCaches | None = None
    _options: StageOptions | None = None
    _given: GivenCaches | None = None

    def initialize_kv_cache(
        self,
        kv_cache_config: KVCacheConfig,
        is_profiling: bool = False,
        kv_cache_allocation_context: AbstractContextManager[Any] | None = None,
    ) -> None:
        super().initialize_kv_cache(
            kv_cache_config, is_profiling, kv_cache_allocation_context=kv_cache_allocation_context
        )
        options = self._options
        if is_profiling or self.io is None or options is None or self.is_pooling_model:
            return
        takes = bool(self._cache_inputs)
        if not takes and all(edge.kv is None for edge in options.outputs):
            return
        layers, dtype = self.compilation_config.static_forward_context, self.dtype
        assert isinstance(dtype, torch.dtype)  # noqa: S101  upstream has resolved its name
        self.stage_caches = make_caches(
            kv_cache_config, layers, self.device_ops, dtype, self._fingerprint
        )
        self.io.attach_caches(self.stage_caches)
        check_room(options, kv_cache_config, self.max_model_len)
        if takes:
            register_loader(engine_key(options), self._load_caches)

    def _fingerprint(self) -> str:
        """Of the weights, as far as they decide what lies in a cache."""
        model, load = self.model_config, self.vllm_config.load_config
        drawn = model.seed if load.load_format == "dummy" else None
        config = model.hf_config.to_dict()
        return model_fingerprint(model.model, config, model.revision, model.quantization, drawn)

    def close_stage(self) -> None:
        """Release what this stage has registered and stored."""
        if self.io is None:
            return
        self.io.connector.close()
        if self._options is not None and self.stage_caches is not None and self._cache_inputs:
            unregister_loader(engine_key(self._options))

    @property
    def _cache_inputs(self) -> list[str]:
        """Incoming edges that bring caches."""
        return [] if self._options is None else [e.name for e in self._options.inputs if e.kv]

    def _load_caches(self, loads: Sequence[CacheLoad]) -> None:
        """Called by vLLM's connector before the forward that needs them."""
        assert self.io is not None  # noqa: S101  it has been registered with both
        assert self.stage_caches is not None  # noqa: S101
        for load in loads:
            cache = self.io.take_cache(load.uid)
            if load.first >= load.stop:
                continue  # the engine's own prefix cache has it all
            if cache is None:
                raise KVTransferError(f"the cache of request {load.uid} is not there to be loaded")
            self.stage_caches.load(cache, load.block_ids, load.first, load.stop)

    def _give_caches(self, model: object, io: StageIO, *, attends: bool) -> None:
        """The model has been loaded: its forward is given the caches that arrive, if any do."""
        if not (self.is_pooling_model and self._cache_inputs):
            return
        if not attends:
            edges = ", ".join(f"'{name}'" for name in self._cache_inputs)
            raise TopologyError(
                f"Edge {edges} brings KV caches, but {type(model).__name__} does not say that it"
                f" attends to any; set attends_to_caches in the model's capabilities, or take kv"
                f" out of the edge."
            )
        self._given = GivenCaches(self.device, io.cache)

    def _model_forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._given is not None:
            kwargs |= self._given.arguments(self.input_batch.req_ids, self.query_start_loc.np)
        return super()._model_forward(*args, **kwargs)


def check_workers(options: StageOptions, world_size: int) -> None:
    """Raise DeploymentError if the stage hands caches over and each worker has only a part."""
    edges = [e.name for e in options.outputs if e.kv is not None]
    edges += [e.name for e in options.inputs if e.kv]
    if edges and world_size > 1:
        raise DeploymentError(
            f"Stage '{options.stage}' has the kv edge '{edges[0]}' and {world_size} workers, each"
            f" with a part of the KV cache; set tensor_parallel_size and pipeline_parallel_size"
            f" to 1."
        )


def check_room(options: StageOptions, caches: KVCacheConfig, max_model_len: int) -> None:
    """Raise DeploymentError if the connector cannot hold the cache of a longest request."""
    edge = next((edge.name for edge in options.outputs if edge.kv is not None), None)
    if edge is None:
        return
    most = 0
    for group in caches.kv_cache_groups:
        spec = group.kv_cache_spec
        blocks = min(-(-max_model_len // spec.block_size), caches.num_blocks)
        most += blocks * spec.page_size_bytes * len(group.layer_names)
    if most > options.connector.max_bytes:
        raise DeploymentError(
            f"The kv edge '{edge}' of stage '{options.stage}' hands over up to {most >> 20} MiB,"
            f" the cache of {max_model_len} tokens, and its connector holds"
            f" {options.connector.max_bytes >> 20} MiB; raise connector_bytes, or lower the"
            f" stage's max_model_len."
        )
