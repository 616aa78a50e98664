"""A tiny generation stage with state: what a vocoder is to a talker, in exact numbers.

Each id t gives the samples (t, s + t), where s is the sum of all ids before it; at the end of the
stream the model owes one more sample, -s.
"""

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
from antiphon.payload.types import Payload, Scalar

ARCH = "TinyVocoder"
POISON = 200  # an id whose presence in a step makes the forward raise; no talker samples it


def register() -> None:
    ModelRegistry.register_model(ARCH, TinyVocoder)


def vocoder_model(folder: Path) -> str:
    """Write a checkpoint without weights."""
    config = LlamaConfig(
        architectures=[ARCH],
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


def decoded(ids: Iterable[int], *, owes: bool = False) -> list[float]:
    """What the whole stream sounds like."""
    total = 0
    samples: list[float] = []
    for token in ids:
        total += token
        samples += [float(token), float(total)]
    return [*samples, -float(total)] if owes else samples


class _Pooler(Pooler):
    def get_supported_tasks(self) -> set[Any]:
        return {"plugin"}

    def forward(
        self, hidden_states: torch.Tensor, pooling_metadata: PoolingMetadata
    ) -> list[torch.Tensor]:
        waves = []
        lengths = pooling_metadata.prompt_lens.tolist()
        for index, ids in enumerate(torch.split(hidden_states.long(), lengths)):
            extra = pooling_metadata.pooling_params[index].extra_kwargs or {}
            kept = pooling_metadata.pooling_states[index].hidden_states_cache
            before = kept[0] if kept else torch.zeros((), dtype=torch.int64)
            new = ids[: int(extra.get("count", len(ids)))]
            sums = before + torch.cumsum(new, 0)
            total = sums[-1] if len(new) else before
            kept[:] = [total]
            wave = torch.stack([new, sums], 1).reshape(-1)
            if extra.get("end"):
                wave = torch.cat([wave, -total.reshape(1)])
            waves.append(wave.float())
        return waves


@attn_type("attention_free")
class TinyVocoder(nn.Module, IsAttentionFree):
    is_pooling_model = True

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.pooler = _Pooler()

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        return torch.empty(input_ids.shape[0], 0)

    def forward(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if bool((input_ids == POISON).any()):
            raise RuntimeError("the vocoder fell over")
        return input_ids

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        return set()


class IdsIn:
    """Each chunk of ids is one forward. Parameter `owes`: the last sample is asked for too."""

    def __init__(self, context: StageContext) -> None:
        pass

    def open(self, uid: str, params: Mapping[str, Scalar]) -> _IdsIn:
        return _IdsIn(bool(params.get("owes")))


class _IdsIn:
    def __init__(self, owes: bool) -> None:
        self._owes = owes

    def on_payload(self, payload: Payload, *, last: bool) -> Input:
        ids = tuple(payload.fields["ids"].tensor.tolist())
        return Input(PromptPlan(ids, extra={"count": len(ids), "end": last and self._owes}))

    def on_end(self) -> Input:
        return Input(PromptPlan((), extra={"count": 0, "end": True})) if self._owes else Input()
