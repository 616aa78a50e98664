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

from typing import Any

import torch
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.model_executor.models.interfaces import SupportsMRoPE
from vllm.model_executor.models.qwen3_moe import Qwen3MoeModel
from vllm.model_executor.models.utils import WeightsMapper
from vllm.sequence import IntermediateTensors

from antiphon.models.frame_talker import FrameTalker, Projection
from antiphon.worker.capabilities import Capabilities

WEIGHTS = "talker."

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


class Talker(FrameTalker, SupportsMRoPE):
    """The model that vLLM loads. A `PromptEmbedder` and `RowConditioned`, and a `DecodeHook`."""

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
        super().__init__(TalkerDecoder, vllm_config, prefix)
        config = vllm_config.model_config.hf_config
        text, width = config.text_config, config.thinker_hidden_size
        self.capabilities = Capabilities(
            prompt_width=width, row_width=width, frame_size=config.num_code_groups
        )
        sizes = (width, text.intermediate_size, text.hidden_size, text.hidden_act)
        self.text_projection = Projection(*sizes)
        self.hidden_projection = Projection(*sizes)

    def embed_prompt(self, rows: torch.Tensor, marks: torch.Tensor | None) -> torch.Tensor:
        """Input embeddings [n, hidden] of `rows` [n, thinker's hidden].

        `marks` int64 [n, 2]: which projection (0 text, 1 sound), and the codec token whose
        embedding is added, or -1. Without marks all rows are text and nothing is added.
        """
        embeds: torch.Tensor = self.text_projection(rows)
        if marks is not None:
            sound = marks[:, _PROJECTION] == 1
            embeds = torch.where(sound[:, None], self.hidden_projection(rows), embeds)
            embeds = embeds + self.embed_or_zero(marks[:, _CODEC])
        return embeds

    def condition(self, embeds: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Frames' embeddings [n, hidden] with the text [n, thinker's hidden] at their places."""
        text: torch.Tensor = self.text_projection(rows)
        return embeds + text

    def get_mrope_input_positions(
        self, input_tokens: list[int], mm_features: list[Any]
    ) -> tuple[torch.Tensor, int]:
        """Positions [3, n] of a prompt, and how far those behind it are from their index."""
        return torch.arange(len(input_tokens)).expand(3, -1).contiguous(), 0

    @staticmethod
    def is_unused_checkpoint_weight(name: str) -> bool:
        """Lets vLLM leave out files of which this stage needs nothing."""
        return not name.startswith(WEIGHTS)
