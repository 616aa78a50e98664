"""Tells vLLM and transformers about the drawing network. Runs in every process of vLLM."""

from __future__ import annotations

DRAW_ARCH = "AntiphonImagineDraw"


def register_models() -> None:
    """Register by name; the model's own module is imported only where it is used. May be called
    twice.
    """
    from transformers import AutoConfig
    from vllm import ModelRegistry

    from antiphon.models.imagine.draw_config import DrawConfig

    ModelRegistry.register_model(DRAW_ARCH, "antiphon.models.imagine.draw:Draw")
    AutoConfig.register(DrawConfig.model_type, DrawConfig, exist_ok=True)
