"""The talker of Qwen3-Omni as a model of vLLM.

A decoder samples the first code of each frame, the code predictor makes the others, and the next
input is the sum of the frame's embeddings and of what the thinker says at that place. Prompts and
rows come in the thinker's space and are projected here.

Positions are those of text, the same in all three rows: what transformers gives to prompts of text
and sound. Prompts with pictures would need others.

Source: transformers' `Qwen3OmniMoeTalkerForConditionalGeneration` and
`Qwen3OmniMoeForConditionalGeneration.generate`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2FN
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.interfaces import SupportsMRoPE
from vllm.model_executor.models.qwen3_moe import Qwen3MoeModel
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper, maybe_prefix
from vllm.sequence import IntermediateTensors

from antiphon.models.code_predictor import CodePredictor, PredictorSizes
from antiphon.models.whole_weights import every_weight
from antiphon.worker.capabilities import Capabilities, Draw

WEIGHTS = "talker."

# Ids at the vocabulary's end that are never sampled, the one that ends speech excepted. The number
# is written into transformers' `generate` as well, not into any configuration.
_RESERVED = 1024

# Columns of an input adapter's `prompt_marks`.
_PROJECTION = 0  # 0: a row is text, 1: it stands for sound
_CODEC = 1  # id of a codec token whose embedding is added to the row, or -1


@support_torch_compile(
    dynamic_arg_dims={
        "input_ids": 0,
        "positions": -1,  # [3, num_tokens]: what upstream's decorator infers is for one row
        "intermediate_tensors": 0,
        "inputs_embeds": 0,
    }
)
class TalkerDecoder(Qwen3MoeModel):
    """vLLM's decoder, compiled for three rows of positions."""

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> Any:
        return super().forward(input_ids, positions, intermediate_tensors, inputs_embeds)


class Projection(nn.Module):
    """Rows of the thinker into the talker's space (transformers'
    `Qwen3OmniMoeTalkerResizeMLP`).
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        inner, hidden = config.text_config.intermediate_size, config.text_config.hidden_size
        self.linear_fc1 = nn.Linear(config.thinker_hidden_size, inner)
        self.linear_fc2 = nn.Linear(inner, hidden)
        self.activation = ACT2FN[config.text_config.hidden_act]

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[n, thinker's hidden] → [n, hidden]."""
        projected: torch.Tensor = self.linear_fc2(self.activation(self.linear_fc1(rows)))
        return projected


class Talker(nn.Module, SupportsMRoPE):
    """The model that vLLM loads. A `PromptEmbedder`, `RowConditioned` and a `DecodeHook`."""

    packed_modules_mapping = {  # noqa: RUF012  upstream's convention
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }
    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={
            "thinker.": None,
            "code2wav.": None,
            f"{WEIGHTS}model.codec_embedding.": "model.embed_tokens.",
            f"{WEIGHTS}codec_head.": "lm_head.",
            WEIGHTS: "",
        }
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        text = config.text_config
        width = config.thinker_hidden_size
        self.capabilities = Capabilities(
            prompt_width=width, row_width=width, frame_size=config.num_code_groups
        )
        self.model = TalkerDecoder(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.lm_head = ParallelLMHead(
            text.vocab_size,
            text.hidden_size,
            quant_config=vllm_config.quant_config,
            prefix=maybe_prefix(prefix, "lm_head"),
        )
        self.logits_processor = LogitsProcessor(text.vocab_size)
        self.code_predictor = CodePredictor(
            PredictorSizes.of(config.code_predictor_config, text.hidden_size)
        )
        self.text_projection = Projection(config)
        self.hidden_projection = Projection(config)
        never = torch.arange(text.vocab_size) >= text.vocab_size - _RESERVED
        never[config.codec_eos_token_id] = False
        self.never_sampled = nn.Buffer(never, persistent=False)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Embeddings [n, hidden] of codec tokens int64 [n]."""
        embeds: torch.Tensor = self.model.embed_input_ids(input_ids)
        return embeds

    def embed_prompt(self, rows: torch.Tensor, marks: torch.Tensor | None) -> torch.Tensor:
        """Input embeddings [n, hidden] of `rows` [n, thinker's hidden].

        `marks` int64 [n, 2]: which projection (0 text, 1 sound), and the codec token whose
        embedding is added, or -1. Without marks all rows are text and nothing is added.
        """
        embeds: torch.Tensor = self.text_projection(rows)
        if marks is not None:
            sound = marks[:, _PROJECTION] == 1
            codec = marks[:, _CODEC]
            added = self.embed_input_ids(codec.clamp(min=0))
            embeds = torch.where(sound[:, None], self.hidden_projection(rows), embeds)
            embeds = embeds + torch.where(codec[:, None] >= 0, added, 0)
        return embeds

    def condition(self, embeds: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Frames' embeddings [n, hidden] with the text [n, thinker's hidden] at their places."""
        text: torch.Tensor = self.text_projection(rows)
        return embeds + text

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

    def get_mrope_input_positions(
        self, input_tokens: list[int], mm_features: list[Any]
    ) -> tuple[torch.Tensor, int]:
        """Positions [3, n] of a prompt, and how far those behind it are from their index."""
        return torch.arange(len(input_tokens)).expand(3, -1).contiguous(), 0

    @staticmethod
    def is_unused_checkpoint_weight(name: str) -> bool:
        """Lets vLLM leave out files of which this stage needs nothing."""
        return not name.startswith(WEIGHTS)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Raises ModelUnavailableError for a checkpoint that is not complete."""
        with every_weight(self):
            loaded: set[str] = AutoWeightsLoader(self).load_weights(
                weights, mapper=self.hf_to_vllm_mapper
            )
        return loaded
