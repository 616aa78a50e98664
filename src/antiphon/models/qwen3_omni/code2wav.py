"""The vocoder of Qwen3-Omni as a stage of vLLM: an attention-free pooling model around the module
of transformers. A prompt is a run of codes, frame by frame; its pooled output the waveform, float32
[samples]. Of a stream of frames it is one window: see `FramePooler`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from transformers import PretrainedConfig, Qwen3OmniMoeCode2Wav
from vllm.config import VllmConfig
from vllm.model_executor.models.utils import WeightsMapper

from antiphon.models.loading import load_mapped
from antiphon.models.vocoder import FramePooler, Vocoder

WEIGHTS = "code2wav."


class CodecPooler(FramePooler):
    """Around transformers' module."""

    def sound(self, frames: torch.Tensor) -> torch.Tensor:
        waves: torch.Tensor = self.decoder(frames.transpose(1, 2))  # [n, 1, samples]
        return waves[:, 0]


class Code2Wav(Vocoder):
    """The model that vLLM loads; see the module's docstring."""

    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={"thinker.": None, "talker.": None, WEIGHTS: "codec."}
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config
        self.codec = Qwen3OmniMoeCode2Wav(_codec_config(config.hf_config, config.dtype))
        self.codec.eval()  # type: ignore[no-untyped-call]
        samples = int(self.codec.total_upsample)
        self.pooler = CodecPooler(self.codec, self.codec.config.num_quantizers, samples)

    @staticmethod
    def is_unused_checkpoint_weight(name: str) -> bool:
        """Lets vLLM leave out files of which this stage needs nothing."""
        return not name.startswith(WEIGHTS)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Raises ModelUnavailableError for weights that do not fit or are not there."""
        return load_mapped(self, weights, self.hf_to_vllm_mapper)


def _codec_config(config: PretrainedConfig, dtype: object) -> Any:
    """transformers' own again: positions are counted in frames, and parts of a model are made in
    the dtype that their configuration names.
    """
    own: Any = copy.deepcopy(config)
    own.max_position_embeddings = config.max_frames
    own.dtype = dtype
    return own
