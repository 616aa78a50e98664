"""Tells vLLM about the stage models of Qwen2.5-Omni. Runs in every process of vLLM."""

from __future__ import annotations

TALKER_ARCH = "AntiphonQwen2_5OmniTalker"
TOKEN2WAV_ARCH = "AntiphonQwen2_5OmniToken2Wav"


def register_models() -> None:
    """Register by name; a model's own module is imported only where it is used. May be called
    twice.
    """
    from vllm import ModelRegistry

    here = "antiphon.models.qwen2_5_omni"
    ModelRegistry.register_model(TALKER_ARCH, f"{here}.talker:Talker")
    ModelRegistry.register_model(TOKEN2WAV_ARCH, f"{here}.token2wav:Token2Wav")
