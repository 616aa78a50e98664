"""A tiny generation stage that tells what it was given of the caches that it attends to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig
from vllm import ModelRegistry
from vllm.config import VllmConfig
from vllm.model_executor.layers.pooler import Pooler
from vllm.model_executor.models.interfaces import IsAttentionFree
from vllm.model_executor.models.interfaces_base import attn_type
from vllm.v1.pool.metadata import PoolingMetadata

from antiphon.core.prompt_plan import PromptPlan
from antiphon.payload.adapters import Input, StageContext
from antiphon.payload.kv import KvMetadata
from antiphon.payload.types import Payload, Scalar
from antiphon.worker.capabilities import Capabilities, PastKeyValues

ARCH, DEAF = "TinyReader", "TinyDeaf"
HEARD: list[dict[str, Any]] = []  # the keyword arguments of each forward


def register() -> None:
    ModelRegistry.register_model(ARCH, TinyReader)
    ModelRegistry.register_model(DEAF, TinyDeaf)


def reader_model(folder: Path, arch: str = ARCH) -> str:
    """Write a checkpoint without weights."""
    config = LlamaConfig(
        architectures=[arch],
        vocab_size=256,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        max_position_embeddings=512,
        dtype="float32",
    )
    config.save_pretrained(folder)
    return str(folder)


class _Pooler(Pooler):
    """Of each request its last row."""

    def get_supported_tasks(self) -> set[Any]:
        return {"plugin"}

    def forward(
        self, hidden_states: torch.Tensor, pooling_metadata: PoolingMetadata
    ) -> list[torch.Tensor]:
        lengths = pooling_metadata.prompt_lens.tolist()
        return [rows[-1] for rows in torch.split(hidden_states, lengths)]


@attn_type("attention_free")
class TinyDeaf(nn.Module, IsAttentionFree):
    """Does not say that it attends to caches."""

    is_pooling_model = True

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.pooler = _Pooler()

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        return torch.empty(input_ids.shape[0], 0)

    def forward(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return input_ids.float().unsqueeze(1)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        return set()


class TinyReader(TinyDeaf):
    """Each request's output: its cache's length, and the sum of each layer's keys and values."""

    capabilities = Capabilities(attends_to_caches=True)

    def forward(
        self,
        input_ids: torch.Tensor,
        *args: Any,
        past_key_values: PastKeyValues | None = None,
        kv_metadata: list[KvMetadata | None] | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        HEARD.append({"past_key_values": past_key_values, "kv_metadata": kv_metadata})
        rows = torch.zeros(len(input_ids), 5)
        for cache, about in zip(past_key_values or (), kv_metadata or (), strict=True):
            if cache is not None and about is not None:
                rows[slice(*about.rows)] = summary(about.length, cache)
        return rows


def summary(length: int, cache: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """What the model says of a cache of two layers, [5]."""
    sums = [half.sum() for layer in cache for half in layer]
    return torch.stack([torch.tensor(float(length)), *sums])


class CacheIn:
    """A generation request of the ids 7 and 8 that attends to what came; `blind`: to nothing."""

    def __init__(self, context: StageContext) -> None:
        pass

    def open(self, uid: str, params: Mapping[str, Scalar]) -> _CacheIn:
        return _CacheIn(bool(params.get("blind")))


class _CacheIn:
    def __init__(self, blind: bool) -> None:
        self._blind = blind

    def on_payload(self, payload: Payload, *, last: bool) -> Input:
        return Input(PromptPlan((7, 8)), cache=None if self._blind else payload.cache)

    def on_end(self) -> Input:
        return Input()
