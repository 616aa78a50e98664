"""The checkpoint's configuration as transformers, and through it vLLM, reads it."""

from __future__ import annotations

from typing import Any

import msgspec
from transformers import PretrainedConfig

from antiphon.models.imagine.sizes import DrawSizes


class DrawConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """The sizes under one key; the other fields exist because vLLM asks for them."""

    model_type = "antiphon_imagine_draw"

    def __init__(self, *, draw: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self.draw = draw or {}
        sizes = self.sizes()
        self.vocab_size = sizes.variants  # a prompt is the number of a variant
        self.hidden_size = sizes.hidden
        self.num_hidden_layers = len(sizes.kv_layers)
        self.num_attention_heads = sizes.heads
        self.max_position_embeddings = 16
        super().__init__(**kwargs)

    def sizes(self) -> DrawSizes:
        return msgspec.convert(self.draw, DrawSizes)
