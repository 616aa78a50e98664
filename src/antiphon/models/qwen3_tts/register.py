"""Tells vLLM and transformers about Qwen3-TTS. Runs in every process of vLLM."""

from __future__ import annotations

TALKER_ARCH = "AntiphonQwen3TTSTalker"
CODE2WAV_ARCH = "AntiphonQwen3TTSCode2Wav"


def register_models() -> None:
    """Register by name; a model's own module is imported only where it is used. May be called
    twice.
    """
    from transformers import AutoConfig
    from vllm import ModelRegistry

    from antiphon.models.qwen3_tts.configs import Qwen3TTSConfig

    here = "antiphon.models.qwen3_tts"
    ModelRegistry.register_model(TALKER_ARCH, f"{here}.talker:Talker")
    ModelRegistry.register_model(CODE2WAV_ARCH, f"{here}.code2wav:Code2Wav")
    AutoConfig.register(Qwen3TTSConfig.model_type, Qwen3TTSConfig, exist_ok=True)
