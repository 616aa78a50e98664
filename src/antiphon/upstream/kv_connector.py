"""Seam: a KV cache that another stage has computed becomes part of a request of this engine.

Reason: upstream loads foreign caches through `KVConnectorBase_V1`, which it makes from the
deployment's module path: it asks how many tokens of a request are cached elsewhere, allocates their
blocks, and has the worker's half fill them before the forward that needs them. Ours loads
synchronously, from what the stage's worker holds already, so nothing can fail or be late here.
Nothing is saved: caches leave a stage by their own way. Names used: the interface, `KVCacheBlocks.
get_block_ids`. Fallback: none; the interface is upstream's public one for connectors.

vLLM keeps one worker half per process, whichever engine made it, and each of its engines speaks to
that one. Ours keeps nothing of its engine: orders name theirs, and loaders are looked up by it. So
several engines of one process may use it, if all of them are given it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)

from antiphon.core.options import StageOptions

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request


@dataclass(frozen=True, slots=True)
class CacheLoad:
    """Fill positions [first, stop) of a request; without any, what is kept for it is not needed."""

    uid: str
    block_ids: tuple[tuple[int, ...], ...]  # of the whole request, by KV group
    first: int  # a multiple of the block size
    stop: int


@dataclass(slots=True)
class CacheLoads(KVConnectorMetadata):
    """One step's loads of one engine."""

    engine: str
    loads: list[CacheLoad]


Loader = Callable[[Sequence[CacheLoad]], None]
_loaders: dict[str, Loader] = {}  # by engine, of this process


def engine_key(options: StageOptions) -> str:
    """What an engine is called among those of its process."""
    return f"{options.connector.run}/{options.stage}"


def register_loader(engine: str, loader: Loader) -> None:
    """Have `loader` carry out the loads of `engine`, in place of an earlier one of that name."""
    _loaders[engine] = loader


def unregister_loader(engine: str) -> None:
    """The engine is gone; harmless if it is not known."""
    _loaders.pop(engine, None)


def connector_config() -> KVTransferConfig:
    """What makes vLLM use the connector of this module."""
    return KVTransferConfig(
        kv_connector=StageCacheConnector.__name__,
        kv_connector_module_path=__name__,
        kv_role="kv_consumer",
    )


class StageCacheConnector(KVConnectorBase_V1, SupportsHMA):
    """Both halves: the scheduler's says what is cached, the worker's passes loads on."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        options = StageOptions.from_config(vllm_config.additional_config)
        self._engine = "" if options is None else engine_key(options)
        self._expected: dict[str, int] = {}  # uid: leading tokens that the worker has cached
        self._loads: list[CacheLoad] = []

    # --- for the stage's scheduler ------------------------------------------------------------

    def expect(self, uid: str, num_tokens: int) -> None:
        """The worker holds the cache of the request's first tokens."""
        self._expected[uid] = num_tokens

    def forget(self, uid: str) -> None:
        """The request is over; unknown ones are ignored."""
        self._expected.pop(uid, None)

    def check_integrity(self, uids: Container[str]) -> None:
        """Raise AssertionError if a cache is expected for a request that is not among `uids`, or a
        step has left loads behind.
        """
        if any(uid not in uids for uid in self._expected):
            raise AssertionError("a cache is expected for a request that is gone")
        if self._loads:
            raise AssertionError("caches are to be loaded for a step that is over")

    # --- scheduler half -----------------------------------------------------------------------

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return max(0, self._cached(request) - num_computed_tokens), False

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        if request.request_id not in self._expected:
            return
        stop = self._cached(request)
        first = stop - num_external_tokens
        block_ids = tuple(tuple(ids) for ids in blocks.get_block_ids())
        self._loads.append(CacheLoad(request.request_id, block_ids, first, stop))
        # Once: if the request loses its blocks, it computes them again.
        self.forget(request.request_id)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> CacheLoads:
        loads, self._loads = self._loads, []
        return CacheLoads(self._engine, loads)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return False, None

    def _cached(self, request: Request) -> int:
        """A request without anything left to compute could not sample."""
        return min(self._expected.get(request.request_id, 0), request.num_tokens - 1)

    # --- worker half --------------------------------------------------------------------------

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        orders = self._get_connector_metadata()
        assert isinstance(orders, CacheLoads)  # noqa: S101  this class made it
        if orders.loads:
            _loaders[orders.engine](orders.loads)

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(
        self,
        layer_name: str,
        kv_layer: torch.Tensor,
        attn_metadata: AttentionMetadata,
        **kwargs: Any,
    ) -> None:
        pass

    def wait_for_save(self) -> None:
        pass
