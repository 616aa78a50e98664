"""Tells vLLM and transformers about the stage models of the `voice` pipeline. Runs in every
process of vLLM.
"""

from __future__ import annotations

CODE2WAV_ARCH = "AntiphonVoiceCode2Wav"


def register_models() -> None:
    """Register by name; the model's own module is imported only where it is used. May be called
    twice.
    """
    from transformers import AutoConfig
    from vllm import ModelRegistry

    from antiphon.models.voice.code2wav_config import Code2WavConfig

    ModelRegistry.register_model(CODE2WAV_ARCH, "antiphon.models.voice.code2wav:Code2Wav")
    AutoConfig.register(Code2WavConfig.model_type, Code2WavConfig, exist_ok=True)
