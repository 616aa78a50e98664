"""What talkers of Qwen3 have in common: a decoder of vLLM samples the first code of each frame, the
code predictor makes the others, and the next input is the sum of the frame's embeddings and of what
is said at that place.

Sources: transformers' `Qwen3OmniMoeTalkerForConditionalGeneration`, and the class of that kind in
qwen-tts 0.1.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import nn
from transformers.activations import ACT2FN
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.utils import WeightsMapper, maybe_prefix
from vllm.sequence import IntermediateTensors

from antiphon.errors import ModelUnavailableError
from antiphon.models.code_predictor import CodePredictor, PredictorSizes
from antiphon.models.loading import load_mapped
from antiphon.worker.capabilities import Draw

# Ids at the vocabulary's end that are never sampled, the one that ends speech excepted. The number
# is written into the `generate` of both sources as well, not into any configuration.
_RESERVED = 1024


class Projection(nn.Module):
    """Rows into the talker's space (`Qwen3OmniMoeTalkerResizeMLP`, `Qwen3TTSTalkerResizeMLP`)."""

    def __init__(self, width: int, inner: int, hidden: int, activation: str) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(width, inner)
        self.linear_fc2 = nn.Linear(inner, hidden)
        self.activation = ACT2FN[activation]

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[n, width] → [n, hidden]."""
        projected: torch.Tensor = self.linear_fc2(self.activation(self.linear_fc1(rows)))
        return projected


class FrameTalker(nn.Module):
    """A `DecodeHook`; what a talker's prompts and rows are is its own."""

    packed_modules_mapping = {  # noqa: RUF012  upstream's convention
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }
    hf_to_vllm_mapper: ClassVar[WeightsMapper]

    def __init__(self, decoder: Callable[..., Any], vllm_config: VllmConfig, prefix: str) -> None:
        """`decoder` is the class of the decoder, whose configuration is the model's or a part.

        Raises ModelUnavailableError for a configuration that is not supported.
        """
        super().__init__()
        config: Any = vllm_config.model_config.hf_config
        text: Any = vllm_config.model_config.hf_text_config
        self.model = decoder(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.lm_head = ParallelLMHead(
            text.vocab_size,
            text.hidden_size,
            quant_config=vllm_config.quant_config,
            prefix=maybe_prefix(prefix, "lm_head"),
        )
        self.logits_processor = LogitsProcessor(text.vocab_size)
        sizes = PredictorSizes.of(config.code_predictor_config, text.hidden_size)
        self.code_predictor = CodePredictor(sizes)
        if text.vocab_size - _RESERVED < sizes.codebook:
            raise ModelUnavailableError(
                f"a talker with {text.vocab_size} ids, the last {_RESERVED} of which are no codes,"
                f" cannot say all {sizes.codebook} codes of its codebook; such a checkpoint is not"
                " supported"
            )
        never = torch.arange(text.vocab_size) >= text.vocab_size - _RESERVED
        never[config.codec_eos_token_id] = False
        self.never_sampled = nn.Buffer(never, persistent=False)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Embeddings [n, hidden] of codec ids int64 [n]."""
        embeds: torch.Tensor = self.model.embed_input_ids(input_ids)
        return embeds

    def embed_or_zero(self, codec: torch.Tensor) -> torch.Tensor:
        """The same of ids int64 [n] that may be -1: zeros there."""
        return torch.where(codec[:, None] >= 0, self.embed_input_ids(codec.clamp(min=0)), 0)

    def predict_frames(
        self, hidden: torch.Tensor, token_ids: torch.Tensor, draw: Draw
    ) -> torch.Tensor:
        """Frames int64 [n, groups] of tokens int64 [n], sampled from `hidden` [n, hidden]."""
        rest = self.code_predictor(hidden, self.embed_input_ids(token_ids), draw)
        return torch.cat([token_ids[:, None], rest], dim=1)

    def embed_frames(self, frames: torch.Tensor) -> torch.Tensor:
        """Sums [n, hidden] of the embeddings of frames int64 [n, groups]."""
        first = self.embed_input_ids(frames[:, 0])
        rest = self.code_predictor.embed(frames[:, 1:])
        return torch.cat([first[:, None], rest], dim=1).sum(dim=1)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: object,
    ) -> Any:
        return self.model(input_ids, positions, intermediate_tensors, inputs_embeds)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Logits [n, vocabulary] of hidden states [n, hidden]."""
        logits: torch.Tensor | None = self.logits_processor(self.lm_head, hidden_states)
        return None if logits is None else logits.masked_fill(self.never_sampled, -torch.inf)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Raises ModelUnavailableError for weights that do not fit or are not there."""
        return load_mapped(self, weights, self.hf_to_vllm_mapper)
