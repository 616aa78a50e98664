"""Tells vLLM about the stages that it does not have. Runs in every process of vLLM."""

from __future__ import annotations

TALKER_ARCH = "AntiphonQwen3OmniTalker"
CODE2WAV_ARCH = "AntiphonQwen3OmniCode2Wav"


def register_models() -> None:
    """Register by name; the models' modules are imported only where they are used. May be called
    twice.
    """
    from vllm import ModelRegistry

    folder = "antiphon.models.qwen3_omni"
    ModelRegistry.register_model(TALKER_ARCH, f"{folder}.talker:Talker")
    ModelRegistry.register_model(CODE2WAV_ARCH, f"{folder}.code2wav:Code2Wav")
