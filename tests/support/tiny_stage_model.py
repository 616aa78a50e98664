"""An out-of-tree stage model: Llama with side outputs of every layout, and a way to fall over."""

from __future__ import annotations

from typing import Any

import torch
from vllm import ModelRegistry
from vllm.forward_context import get_forward_context
from vllm.model_executor.models.llama import LlamaForCausalLM

from antiphon.payload.types import per_request, per_token, shared
from antiphon.worker.side_outputs import StageForward

ARCH = "TinyStageLlama"
POISON = 113  # a token whose presence in a step makes the forward raise
CROOKED = 114  # a token that makes a side output one row too short
EARLY = 116  # a token with which it raises before anything has been computed
HUNGRY = 117  # a token for which the device has no memory
STARVED = 118  # a token for which the process has none
FRAIL = 115  # a token that makes a side output no tensor at all: noticed when the step is sampled


def register() -> None:
    ModelRegistry.register_model(ARCH, TinyStageLlama)


class TinyStageLlama(LlamaForCausalLM):
    """Side outputs: `double` (per token), `length` (per request), `table` (shared)."""

    def forward(self, input_ids: torch.Tensor | None, *args: Any, **kwargs: Any) -> Any:
        metadata = get_forward_context().attn_metadata
        if metadata and input_ids is not None and bool((input_ids == EARLY).any()):
            raise RuntimeError("the model did not begin")
        hidden = super().forward(input_ids, *args, **kwargs)
        if not isinstance(metadata, dict) or not metadata or input_ids is None:
            return hidden  # upstream's own trial runs
        if bool((input_ids == POISON).any()):
            raise RuntimeError("the model fell over")
        if bool((input_ids == HUNGRY).any()):
            raise torch.OutOfMemoryError("tried to allocate 1 TiB")
        if bool((input_ids == STARVED).any()):
            raise MemoryError
        starts = next(iter(metadata.values())).query_start_loc
        lengths = (starts[1:] - starts[:-1]).to(torch.int64)  # [num_requests]
        double = 2 * hidden
        if bool((input_ids == CROOKED).any()):
            double = double[1:]
        if bool((input_ids == FRAIL).any()):
            double = None
        table = torch.arange(3, dtype=torch.int32)
        return StageForward(
            hidden,
            {"double": per_token(double), "length": per_request(lengths), "table": shared(table)},
        )

    def compute_logits(self, hidden_states: torch.Tensor) -> Any:
        """The tokens that do harm are never sampled."""
        logits = super().compute_logits(hidden_states)
        logits[:, [POISON, CROOKED, FRAIL, EARLY, HUNGRY, STARVED]] = float("-inf")
        return logits
