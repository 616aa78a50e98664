"""The edge `codes` (talker → code2wav) of Qwen3-TTS: see `antiphon.models.frame_codes`."""

from __future__ import annotations

from antiphon.models.frame_codes import FramesInput, FramesOutput
from antiphon.models.qwen3_tts.settings import CodecSettings, TtsSettings
from antiphon.payload.adapters import StageContext


class CodesOutput(FramesOutput):
    """Talker's end."""

    def __init__(self, context: StageContext) -> None:
        super().__init__(context, TtsSettings.read(context.model).talker_config.codec_eos_token_id)


class CodesInput(FramesInput):
    """Code2wav's end."""

    def __init__(self, context: StageContext) -> None:
        decoder = CodecSettings.read(context.model).decoder_config
        super().__init__(decoder.num_quantizers, decoder.codebook_size)
