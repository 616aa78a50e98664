"""The checkpoint's configurations as transformers, and through it vLLM, reads them; and what a
stage's model is given of them.

transformers does not know `qwen3_tts`; its own classes are used for the parts that are a Qwen3
decoder and the decoder of Qwen3-Omni's codec.
"""

from __future__ import annotations

from typing import Any, TypeVar

from transformers import PretrainedConfig, Qwen3Config
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeCode2WavConfig,
)

from antiphon.errors import ModelUnavailableError
from antiphon.models.qwen3_tts.register import CODE2WAV_ARCH, TALKER_ARCH
from antiphon.models.qwen3_tts.settings import CODEC, CodecSettings


class Qwen3TTSConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """config.json of the checkpoint."""

    model_type = "qwen3_tts"

    def __init__(self, *, talker_config: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self.talker = talker_config or {}
        super().__init__(**kwargs)


class TalkerConfig(Qwen3Config):  # type: ignore[no-untyped-call]
    """A Qwen3 decoder over the codec's ids, with a table of text ids beside it.

    `rope_parameters` say nothing of sections: the checkpoint's M-RoPE has three positions that are
    equal for every token, which is the ordinary rotation by one.
    """

    model_type = "qwen3_tts_talker"

    text_vocab_size: int = 0
    text_hidden_size: int = 0
    num_code_groups: int = 0
    codec_eos_token_id: int = 0
    code_predictor_config: Any = None


class CodecConfig(Qwen3OmniMoeCode2WavConfig):  # type: ignore[no-untyped-call]
    """The decoder of the 12 Hz codec: Qwen3-Omni's, and what only this one has.

    `vocab_size`: a prompt has an id for each code of a frame.
    """

    model_type = "qwen3_tts_codec_decoder"

    codebook_dim: int = 512
    latent_dim: int = 1024
    head_dim: int = 64
    vocab_size: int = 0


_C = TypeVar("_C", bound=Qwen3Config)


def talker_config(config: PretrainedConfig) -> PretrainedConfig:
    """The talker's part of a checkpoint's configuration; another one is left as it is."""
    if not isinstance(config, Qwen3TTSConfig):
        return config
    given = dict(config.talker)
    predictor = given.pop("code_predictor_config")
    made = _decoder(TalkerConfig, given)
    made.code_predictor_config = _decoder(Qwen3Config, predictor)
    made.eos_token_id = made.codec_eos_token_id
    made.architectures = [TALKER_ARCH]
    made.dtype = config.dtype
    return made


def code2wav_config(config: PretrainedConfig) -> PretrainedConfig:
    """The configuration of the codec's decoder, from its folder inside the checkpoint; another one
    is left as it is.

    Raises ModelUnavailableError if there is no such folder.
    """
    if not isinstance(config, Qwen3TTSConfig):
        return config
    checkpoint = str(config.name_or_path)
    CodecSettings.read(checkpoint)  # tells what is wrong, where transformers would guess
    given, _ = PretrainedConfig.get_config_dict(checkpoint, subfolder=CODEC)
    fields = dict(given["decoder_config"])
    fields.pop("model_type", None)
    made = CodecConfig(**fields)
    made.vocab_size = made.codebook_size
    made.max_position_embeddings *= made.num_quantizers
    made.architectures = [CODE2WAV_ARCH]
    made.dtype = config.dtype
    return made


def _decoder(kind: type[_C], given: dict[str, Any]) -> _C:
    """A Qwen3 decoder of the official configuration's fields.

    Raises ModelUnavailableError for positions of another kind.
    """
    scaling = given.get("rope_scaling") or {}
    if (rope := scaling.get("rope_type", "default")) != "default":
        raise ModelUnavailableError(f"a talker of rope_type {rope!r} is not supported")
    other = ("model_type", "rope_scaling", "rope_theta")
    fields = {key: value for key, value in given.items() if key not in other}
    fields["rope_parameters"] = {"rope_type": "default", "rope_theta": given["rope_theta"]}
    fields.setdefault("head_dim", given["hidden_size"] // given["num_attention_heads"])
    return kind(**fields)
