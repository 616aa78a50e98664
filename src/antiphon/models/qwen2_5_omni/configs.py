"""A stage's part of a checkpoint's configuration, as vLLM's `hf_overrides` wants it: a function of
the whole configuration that returns the stage's. What is a stage's configuration already comes back
as it is. The thinker needs none: vLLM takes its part out of the whole.
"""

from __future__ import annotations

import copy
from typing import Any

from transformers import PretrainedConfig, Qwen2_5OmniConfig

from antiphon.models.qwen2_5_omni.register import TALKER_ARCH, TOKEN2WAV_ARCH


def talker_config(config: PretrainedConfig) -> PretrainedConfig:
    """The talker's, in the terms of the decoder layers of vLLM that it is built of."""
    if not isinstance(config, Qwen2_5OmniConfig):
        return config
    talker: Any = copy.deepcopy(config.talker_config)
    talker.architectures = [TALKER_ARCH]
    talker.eos_token_id = stop_ids(talker)
    talker.qkv_bias = True  # transformers' Qwen2_5OmniAttention: on q, k and v, not on o
    # Its prompts are text and sound, for which the three rows of positions are equal: plain
    # rotary positions.
    talker.rope_parameters = {
        key: value for key, value in talker.rope_parameters.items() if key != "mrope_section"
    }
    return _typed(talker, config)


def token2wav_config(config: PretrainedConfig) -> PretrainedConfig:
    """The vocoder's, with what vLLM asks of any model: it has no attention that vLLM would know."""
    if not isinstance(config, Qwen2_5OmniConfig):
        return config
    token2wav: Any = copy.deepcopy(config.token2wav_config)
    dit = token2wav.dit_config
    token2wav.architectures = [TOKEN2WAV_ARCH]
    token2wav.vocab_size = num_codes(dit)
    token2wav.max_position_embeddings = max_codes(dit)
    token2wav.hidden_size = dit.hidden_size
    token2wav.num_hidden_layers = dit.num_hidden_layers
    token2wav.num_attention_heads = dit.num_attention_heads
    return _typed(token2wav, config)


def stop_ids(talker: Any) -> list[int]:
    """The codec ids that end speech: transformers' `Qwen2_5OmniForConditionalGeneration.generate`
    has them as the default of `talker_eos_token_id`.
    """
    return [talker.tts_codec_pad_token_id, talker.tts_codec_end_token_id]


def num_codes(dit: Any) -> int:
    """Ids that the vocoder has an embedding for (transformers' DiTCodecEmbedding)."""
    return int(dit.num_embeds) + 1


def max_codes(dit: Any) -> int:
    """Codes that the vocoder decodes at most; each is `repeats` positions long."""
    return int(dit.max_position_embeddings) // int(dit.repeats)


def _typed(part: Any, whole: PretrainedConfig) -> PretrainedConfig:
    """A part that names no dtype has that of the whole checkpoint."""
    if part.dtype is None:
        part.dtype = whole.dtype
    typed: PretrainedConfig = part
    return typed
