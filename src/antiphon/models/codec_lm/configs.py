"""What vLLM is told about the codec's checkpoint."""

from __future__ import annotations

import copy

from transformers import PretrainedConfig

from antiphon.models.codec_lm.codecs import codec_facts
from antiphon.models.codec_lm.register import CODEC_ARCH


def codec_config(config: PretrainedConfig) -> PretrainedConfig:
    """The codec's own config with what vLLM asks for: whose model it is, and how many ids there
    are. Raises ModelUnavailableError for a checkpoint that is no codec.
    """
    if type(config) is PretrainedConfig:
        return config  # an empty one: upstream asks first whether the model's type changes
    facts = codec_facts(config.to_dict(), "the checkpoint's config.json")
    stage: PretrainedConfig = copy.deepcopy(config)
    stage.architectures = [CODEC_ARCH]
    stage.vocab_size = facts.num_codes
    return stage
