"""The talker of Qwen3-TTS as a model of vLLM.

A Qwen3 decoder samples the first code of each frame, the code predictor makes the others, and the
next input is the sum of the frame's embeddings and of a text embedding, projected into the talker's
space. The text's table is the talker's own, so prompts and rows are ids.

Source: `Qwen3TTSTalkerForConditionalGeneration` and `Qwen3TTSForConditionalGeneration.generate` of
qwen-tts 0.1.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2FN
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.model_executor.models.qwen3 import Qwen3Model
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper, maybe_prefix
from vllm.sequence import IntermediateTensors

from antiphon.models.code_predictor import CodePredictor, PredictorSizes
from antiphon.models.qwen3_tts.configs import TalkerConfig
from antiphon.models.whole_weights import every_weight
from antiphon.worker.capabilities import Capabilities, Draw

WEIGHTS = "talker."

# Ids at the vocabulary's end that are never sampled, the one that ends an utterance excepted. The
# number is written into the official `generate` as well, not into any configuration.
_RESERVED = 1024

# Columns of a prompt row.
_TEXT, _CODEC = 0, 1


class Projection(nn.Module):
    """Text embeddings into the talker's space (`Qwen3TTSTalkerResizeMLP`)."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(config.text_hidden_size, config.text_hidden_size)
        self.linear_fc2 = nn.Linear(config.text_hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, embeds: torch.Tensor) -> torch.Tensor:
        """[n, text_hidden_size] → [n, hidden]."""
        projected: torch.Tensor = self.linear_fc2(self.activation(self.linear_fc1(embeds)))
        return projected


class Talker(nn.Module):
    """The model that vLLM loads. A `PromptEmbedder`, `RowConditioned` and a `DecodeHook`."""

    packed_modules_mapping = {  # noqa: RUF012  upstream's convention
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }
    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={
            "speaker_encoder.": None,
            f"{WEIGHTS}model.codec_embedding.": "model.embed_tokens.",
            f"{WEIGHTS}model.text_embedding.": "text_embedding.",
            f"{WEIGHTS}codec_head.": "lm_head.",
            WEIGHTS: "",
        }
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        assert isinstance(config, TalkerConfig)  # noqa: S101 - the stage's `config` made it
        vocabulary, hidden = config.vocab_size, config.hidden_size
        self.capabilities = Capabilities(
            prompt_width=2, row_width=1, integer_rows=True, frame_size=config.num_code_groups
        )
        self.model = Qwen3Model(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.lm_head = ParallelLMHead(
            vocabulary,
            hidden,
            quant_config=vllm_config.quant_config,
            prefix=maybe_prefix(prefix, "lm_head"),
        )
        self.logits_processor = LogitsProcessor(vocabulary)
        self.text_embedding = VocabParallelEmbedding(
            config.text_vocab_size,
            config.text_hidden_size,
            prefix=maybe_prefix(prefix, "text_embedding"),
        )
        self.text_projection = Projection(config)
        self.code_predictor = CodePredictor(PredictorSizes.of(config.code_predictor_config, hidden))
        never = torch.arange(vocabulary) >= vocabulary - _RESERVED
        never[config.codec_eos_token_id] = False
        self.never_sampled = nn.Buffer(never, persistent=False)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Embeddings [n, hidden] of codec ids int64 [n]."""
        embeds: torch.Tensor = self.model.embed_input_ids(input_ids)
        return embeds

    def embed_text(self, text_ids: torch.Tensor) -> torch.Tensor:
        """Embeddings [n, hidden] of text ids int64 [n]."""
        projected: torch.Tensor = self.text_projection(self.text_embedding(text_ids))
        return projected

    def embed_prompt(self, rows: torch.Tensor, marks: torch.Tensor | None) -> torch.Tensor:
        """Input embeddings [n, hidden] of rows int64 [n, 2]: a text id, and a codec id or -1."""
        codec = rows[:, _CODEC]
        added = self.embed_input_ids(codec.clamp(min=0))
        return self.embed_text(rows[:, _TEXT]) + torch.where(codec[:, None] >= 0, added, 0)

    def condition(self, embeds: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Frames' embeddings [n, hidden] with the text ids int64 [n, 1] at their places."""
        return embeds + self.embed_text(rows[:, 0])

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
    ) -> Any:
        return self.model(input_ids, positions, intermediate_tensors, inputs_embeds)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Logits [n, vocabulary] of hidden states [n, hidden]."""
        logits: torch.Tensor | None = self.logits_processor(self.lm_head, hidden_states)
        return None if logits is None else logits.masked_fill(self.never_sampled, -torch.inf)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Raises ModelUnavailableError for a checkpoint that is not complete."""
        with every_weight(self):
            loaded: set[str] = AutoWeightsLoader(self).load_weights(
                weights, mapper=self.hf_to_vllm_mapper
            )
        return loaded
