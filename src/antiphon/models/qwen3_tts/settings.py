"""What the adapters read of a checkpoint's config.json. Neither torch nor vllm is imported here."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from antiphon.errors import ModelUnavailableError
from antiphon.pipeline.facts import CheckpointFacts

CODEC = "speech_tokenizer"
"""The codec's folder inside the checkpoint."""


class TalkerIds(msgspec.Struct, frozen=True):
    """Ids of the talker's codec table that are no codes, and the voices and languages by name."""

    codec_bos_id: int
    codec_eos_token_id: int
    codec_nothink_id: int
    codec_pad_id: int
    codec_think_bos_id: int
    codec_think_eos_id: int
    codec_think_id: int
    text_vocab_size: int
    codec_language_id: dict[str, int]
    spk_id: dict[str, int]
    spk_is_dialect: dict[str, bool | str]  # false, or the speaker's dialect: one of the languages


class TtsSettings(msgspec.Struct, frozen=True):
    """Of the checkpoint as a whole. `tts_model_size` "0b6": it was not taught instructions."""

    talker_config: TalkerIds
    tts_model_type: str
    tts_bos_token_id: int
    tts_eos_token_id: int
    tts_pad_token_id: int
    tts_model_size: str | None = None

    @classmethod
    def read(cls, checkpoint: str | Path) -> TtsSettings:
        """Raises ModelUnavailableError for a checkpoint that says too little, or clones voices."""
        settings = _read(checkpoint, cls)
        if settings.tts_model_type not in ("custom_voice", "voice_design"):
            raise ModelUnavailableError(
                f"the checkpoint in {checkpoint} is of type {settings.tts_model_type!r}, which"
                " speaks with cloned voices only; these are not supported: use a CustomVoice or"
                " VoiceDesign checkpoint"
            )
        return settings


class DecoderSettings(msgspec.Struct, frozen=True):
    """Of the codec's decoder."""

    codebook_size: int
    num_quantizers: int


class CodecSettings(msgspec.Struct, frozen=True):
    """Of the codec, which has a folder of its own inside the checkpoint."""

    decoder_config: DecoderSettings
    output_sample_rate: int

    @classmethod
    def read(cls, checkpoint: str | Path) -> CodecSettings:
        """Raises ModelUnavailableError for a checkpoint without this folder, or another codec."""
        return _read(Path(checkpoint) / CODEC, cls)


def talker_facts(checkpoint: Path) -> CheckpointFacts:
    """`Stage.facts`: what ends an utterance."""
    end = TtsSettings.read(checkpoint).talker_config.codec_eos_token_id
    return CheckpointFacts(sampling={"stop_token_ids": [end]})


def codec_facts(checkpoint: Path) -> CheckpointFacts:
    """`Stage.facts`: the waveform's sample rate."""
    return CheckpointFacts(sample_rate=CodecSettings.read(checkpoint).output_sample_rate)


_T = TypeVar("_T", bound=msgspec.Struct)


def _read(folder: str | Path, kind: type[_T]) -> _T:
    file = Path(folder) / "config.json"
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise ModelUnavailableError(
            f"{file} is not part of a Qwen3-TTS checkpoint with the 12 Hz codec: {error}"
        ) from error
