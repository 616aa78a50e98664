"""Seam: vLLM's `vllm.general_plugins` entry point, called in every process that builds an engine.

Registers the stage models that vLLM does not know, and how weights are loaded; may be called more
than once.
"""

from __future__ import annotations

from antiphon.core.targets import load_target

# Functions without arguments, by name: what they belong to is above this package and is imported
# only when vLLM asks.
REGISTERING = (
    "antiphon.worker.loader:register",
    "antiphon.models.voice.register:register_models",
    "antiphon.models.imagine.register:register_models",
    "antiphon.models.codec_lm.register:register_models",
    "antiphon.models.qwen2_5_omni.register:register_models",
    "antiphon.models.qwen3_omni.register:register_models",
    "antiphon.models.qwen3_tts.register:register_models",
)


def register() -> None:
    """Register everything."""
    for name in REGISTERING:
        load_target(name, "what registers itself with vLLM")()
