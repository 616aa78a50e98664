"""A stage's part of a checkpoint's configuration, as vLLM's `hf_overrides` wants it: a function of
the whole configuration that returns the stage's. What is a stage's configuration already comes back
as it is.
"""

from __future__ import annotations

import copy
from typing import Any

from transformers import PretrainedConfig, Qwen3OmniMoeConfig

from antiphon.models.qwen3_omni.register import CODE2WAV_ARCH, TALKER_ARCH


def thinker_config(config: PretrainedConfig) -> PretrainedConfig:
    """The whole, under whose name vLLM has the thinker, and with what ends the thinker's turns.

    transformers' `generate` has that id as a default of its own; the files of a checkpoint need not
    say it.
    """
    if not isinstance(config, Qwen3OmniMoeConfig):
        return config
    whole = copy.deepcopy(config)
    whole.eos_token_id = whole.im_end_token_id
    return whole


def talker_config(config: PretrainedConfig) -> PretrainedConfig:
    """The talker's; its `text_config` is the decoder's."""
    if not isinstance(config, Qwen3OmniMoeConfig):
        return config
    talker: Any = copy.deepcopy(config.talker_config)
    talker.architectures = [TALKER_ARCH]
    talker.eos_token_id = talker.codec_eos_token_id
    return _typed(talker, config)


def code2wav_config(config: PretrainedConfig) -> PretrainedConfig:
    """The vocoder's, in the terms of vLLM: its prompt has an id for each code of a frame."""
    if not isinstance(config, Qwen3OmniMoeConfig):
        return config
    code2wav: Any = copy.deepcopy(config.code2wav_config)
    code2wav.architectures = [CODE2WAV_ARCH]
    code2wav.vocab_size = code2wav.codebook_size
    code2wav.max_frames = code2wav.max_position_embeddings
    code2wav.max_position_embeddings = code2wav.max_frames * code2wav.num_quantizers
    return _typed(code2wav, config)


def _typed(part: Any, whole: PretrainedConfig) -> PretrainedConfig:
    """A part that names no dtype has that of the whole checkpoint."""
    if part.dtype is None:
        part.dtype = whole.dtype
    typed: PretrainedConfig = part
    return typed
