"""Functions that make a stage's configuration out of a tiny checkpoint's."""

from __future__ import annotations

from transformers import LlamaConfig, PretrainedConfig


def shorter(config: PretrainedConfig) -> PretrainedConfig:
    """Half of the positions. Upstream calls it first with an empty one, for its model type."""
    if isinstance(config, LlamaConfig):
        config.max_position_embeddings //= 2
    return config
