"""The talker of Qwen2.5-Omni as a model of vLLM: a decoder whose inputs are sums of a codec token's
embedding and a row of the thinker, both as wide as the thinker, projected to the talker's width.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.model_executor.models.llama import LlamaModel
from vllm.model_executor.models.utils import WeightsMapper, maybe_prefix
from vllm.sequence import IntermediateTensors

from antiphon.models.loading import load_mapped
from antiphon.worker.capabilities import Capabilities

_WEIGHTS = "talker."


class TalkerDecoder(LlamaModel):
    """vLLM's decoder, with embeddings that are as wide as the thinker's rows.

    It is Llama's rather than Qwen2's, because the latter derives the heads' size, which is a value
    of its own in this configuration. The layers are the same otherwise: see `talker_config`.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        config = vllm_config.model_config.hf_config
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.embedding_size, prefix=f"{prefix}.embed_tokens"
        )


class Talker(nn.Module):
    """The model that vLLM loads. A `PromptEmbedder` and `RowConditioned`; see `Capabilities`."""

    packed_modules_mapping = {  # noqa: RUF012  upstream's convention
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }
    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={_WEIGHTS: "", "thinker.": None, "token2wav.": None}
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        width = config.embedding_size
        self.capabilities = Capabilities(prompt_width=width, row_width=width)
        self.model = TalkerDecoder(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.thinker_to_talker_proj = nn.Linear(width, config.hidden_size)
        self.codec_head = ParallelLMHead(
            config.vocab_size, config.hidden_size, prefix=maybe_prefix(prefix, "codec_head")
        )
        self.logits_processor = LogitsProcessor(config.vocab_size)
        self._codec_bos = config.tts_codec_start_token_id

    def embed_prompt(self, rows: torch.Tensor, marks: torch.Tensor | None) -> torch.Tensor:
        """Input embeddings [n, hidden] of `rows` [n, embedding_size], the thinker's.

        `marks` int64 [n, 1]: the codec token whose embedding is added to a row, or -1. Source:
        transformers' `Qwen2_5OmniTalkerForConditionalGeneration.forward`.
        """
        if marks is not None:
            codes = marks[:, :1]
            embeds = self.model.embed_input_ids(codes[:, 0].clamp(min=0))
            rows = rows + torch.where(codes >= 0, embeds, 0)
        projected: torch.Tensor = self.thinker_to_talker_proj(rows)
        return projected

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Input embeddings [n, hidden] of codec tokens int64 [n], without the thinker's rows."""
        projected: torch.Tensor = self.thinker_to_talker_proj(self.model.embed_input_ids(input_ids))
        return projected

    def condition(self, embeds: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Input embeddings [n, hidden] of codec tokens with the thinker's rows [n, embedding_size].

        transformers projects the sum of token and row; a projection of a sum is the sum of the
        projections, of which `embeds` is the one with the bias.
        """
        return embeds + F.linear(rows, self.thinker_to_talker_proj.weight)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if inputs_embeds is None and input_ids is not None:
            inputs_embeds = self.embed_input_ids(input_ids)
        hidden: torch.Tensor = self.model(None, positions, intermediate_tensors, inputs_embeds)
        return hidden

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Logits [n, vocabulary] of hidden states [n, hidden]; the start of speech is never chosen,
        as in transformers' `generate`.
        """
        logits: torch.Tensor | None = self.logits_processor(self.codec_head, hidden_states)
        if logits is not None:
            logits[:, self._codec_bos] = -torch.inf
        return logits

    @staticmethod
    def is_unused_checkpoint_weight(name: str) -> bool:
        """Lets vLLM leave out files of which this stage needs nothing."""
        return not name.startswith(_WEIGHTS)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Raises ModelUnavailableError for weights that do not fit or are not there."""
        return load_mapped(self, weights, self.hf_to_vllm_mapper)
