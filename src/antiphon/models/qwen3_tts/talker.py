"""The talker of Qwen3-TTS as a model of vLLM.

A Qwen3 decoder samples the first code of each frame, the code predictor makes the others, and the
next input is the sum of the frame's embeddings and of a text embedding, projected into the talker's
space. The text's table is the talker's own, so prompts and rows are ids.

Source: `Qwen3TTSTalkerForConditionalGeneration` and `Qwen3TTSForConditionalGeneration.generate` of
qwen-tts 0.1.1.
"""

from __future__ import annotations

import torch
from vllm.config import VllmConfig
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.models.qwen3 import Qwen3Model
from vllm.model_executor.models.utils import WeightsMapper, maybe_prefix

from antiphon.models.frame_talker import FrameTalker, Projection
from antiphon.models.qwen3_tts.configs import TalkerConfig
from antiphon.worker.capabilities import Capabilities

WEIGHTS = "talker."

# Columns of a prompt row.
_TEXT, _CODEC = 0, 1


class Talker(FrameTalker):
    """The model that vLLM loads. A `PromptEmbedder` and `RowConditioned`, and a `DecodeHook`."""

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
        super().__init__(Qwen3Model, vllm_config, prefix)
        config = vllm_config.model_config.hf_config
        assert isinstance(config, TalkerConfig)  # noqa: S101 - the stage's `config` made it
        self.capabilities = Capabilities(
            prompt_width=2, row_width=1, integer_rows=True, frame_size=config.num_code_groups
        )
        width = config.text_hidden_size
        self.text_embedding = VocabParallelEmbedding(
            config.text_vocab_size, width, prefix=maybe_prefix(prefix, "text_embedding")
        )
        self.text_projection = Projection(width, width, config.hidden_size, config.hidden_act)

    def embed_text(self, text_ids: torch.Tensor) -> torch.Tensor:
        """Embeddings [n, hidden] of text ids int64 [n]."""
        projected: torch.Tensor = self.text_projection(self.text_embedding(text_ids))
        return projected

    def embed_prompt(self, rows: torch.Tensor, marks: torch.Tensor | None) -> torch.Tensor:
        """Input embeddings [n, hidden] of rows int64 [n, 2]: a text id, and a codec id or -1."""
        return self.embed_text(rows[:, _TEXT]) + self.embed_or_zero(rows[:, _CODEC])

    def condition(self, embeds: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Frames' embeddings [n, hidden] with the text ids int64 [n, 1] at their places."""
        return embeds + self.embed_text(rows[:, 0])
