"""Seam: vLLM's `vllm.general_plugins` entry point, called in every process that builds an engine.

Registers the stage models that vLLM does not know; may be called more than once.
"""

from __future__ import annotations

import importlib

# Functions without arguments that register a model family with vLLM, by name: families are above
# this package and are imported only when vLLM asks.
FAMILIES = (
    "antiphon.models.voice.register:register_models",
    "antiphon.models.imagine.register:register_models",
    "antiphon.models.codec_lm.register:register_models",
    "antiphon.models.qwen2_5_omni.register:register_models",
    "antiphon.models.qwen3_omni.register:register_models",
    "antiphon.models.qwen3_tts.register:register_models",
)


def register() -> None:
    """Register every model family."""
    for name in FAMILIES:
        module, _, function = name.partition(":")
        vars(importlib.import_module(module))[function]()
