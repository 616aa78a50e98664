"""The edge `codes` (talker → code2wav) of Qwen3-Omni: see `antiphon.models.frame_codes`."""

from __future__ import annotations

from typing import Any

from transformers import Qwen3OmniMoeConfig

from antiphon.models.frame_codes import FramesInput, FramesOutput
from antiphon.payload.adapters import StageContext


class CodesOutput(FramesOutput):
    """Talker's end."""

    def __init__(self, context: StageContext) -> None:
        config: Any = Qwen3OmniMoeConfig.from_pretrained(context.model)
        super().__init__(context, config.talker_config.codec_eos_token_id)


class CodesInput(FramesInput):
    """Code2wav's end."""

    def __init__(self, context: StageContext) -> None:
        whole: Any = Qwen3OmniMoeConfig.from_pretrained(context.model)
        config = whole.code2wav_config
        super().__init__(config.num_quantizers, config.codebook_size)
