"""Tells vLLM about the codec stage. Runs in every process of vLLM."""

from __future__ import annotations

CODEC_ARCH = "AntiphonCodec"


def register_models() -> None:
    """Register by name; the model's own module is imported only where it is used. May be called
    twice.
    """
    from vllm import ModelRegistry

    ModelRegistry.register_model(CODEC_ARCH, "antiphon.models.codec_lm.codec:Codec")
