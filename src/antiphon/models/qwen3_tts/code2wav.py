"""The codec's decoder as a stage of vLLM: an attention-free pooling model. A prompt is a run of
codes, frame by frame; its pooled output the waveform, float32 [samples]. Of a stream of frames it
is one window: see `FramePooler`. Nothing is kept between prompts.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from vllm.config import VllmConfig
from vllm.model_executor.models.utils import WeightsMapper

from antiphon.models.loading import load_mapped
from antiphon.models.qwen3_tts.codec import CodecDecoder
from antiphon.models.qwen3_tts.configs import CodecConfig
from antiphon.models.qwen3_tts.settings import CODEC
from antiphon.models.vocoder import FramePooler, Vocoder

_QUANTIZER = "decoder.quantizer."


class CodecPooler(FramePooler):
    """Decodes what is long in chunks."""

    def sound(self, frames: torch.Tensor) -> torch.Tensor:
        waves: torch.Tensor = self.decoder.decode(frames)
        return waves


class Code2Wav(Vocoder):
    """The model that vLLM loads; see the module's docstring."""

    allow_patterns_overrides = [f"{CODEC}/*.safetensors"]  # noqa: RUF012  upstream's convention
    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={
            "encoder.": None,
            # The quantizer's other direction.
            f"{_QUANTIZER}rvq_first.input_proj.": None,
            f"{_QUANTIZER}rvq_rest.input_proj.": None,
        }
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        assert isinstance(config, CodecConfig)  # noqa: S101 - the stage's `config` made it
        self.decoder = CodecDecoder(config).eval()
        samples = self.decoder.total_upsample
        self.pooler = CodecPooler(self.decoder, config.num_quantizers, samples)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Raises ModelUnavailableError for weights that do not fit or are not there."""
        return load_mapped(self, weights, self.hf_to_vllm_mapper)
