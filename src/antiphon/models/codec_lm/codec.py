"""A codec's decoder as a stage of vLLM: an attention-free pooling model around transformers' own
module. A prompt is a run of codes, its pooled output the waveform, float32 [samples].

With the keys of a `CodeWindow` in `extra_kwargs` the prompt is one chunk of a stream and the output
is the sound of its new codes, as many samples for each as the codec has. Nothing is kept between
chunks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import torch
from torch import nn
from transformers import AutoModel, PretrainedConfig
from vllm.config import VllmConfig

from antiphon.models.code_windows import window_of
from antiphon.models.codec_lm.codecs import DECODING
from antiphon.models.loading import load_module
from antiphon.models.vocoder import Prompt, Vocoder, WaveformPooler


def decoder_of(config: PretrainedConfig, dtype: torch.dtype) -> nn.Module:
    """transformers' model of this config without its encoders, which decoding does not use.

    transformers makes whole models only; the large encoder is made without layers.
    """
    bare = copy.deepcopy(config)
    bare.semantic_model_config.num_hidden_layers = 0
    codec: nn.Module = AutoModel.from_config(bare, dtype=dtype)  # type: ignore[no-untyped-call]
    for name, _ in list(codec.named_children()):
        if name not in DECODING:
            delattr(codec, name)
    return codec.eval()


class CodecPooler(WaveformPooler):
    """A window that `window_of` refuses is a whole utterance."""

    def __init__(self, codec: nn.Module, hop: int) -> None:
        super().__init__(codec)
        self._hop = hop

    def decode(self, codes: torch.Tensor, prompts: Sequence[Prompt]) -> Iterable[torch.Tensor]:
        length, hop = codes.shape[1], self._hop
        # [n, 1, length * hop], of codes [n, 1, length]
        sound = self.decoder.decode(audio_codes=codes.unsqueeze(1)).audio_values
        windows = [window_of(prompt.extra, length) for prompt in prompts]
        return [
            wave[at.left * hop : (length - at.right) * hop].float()
            for wave, at in zip(sound[:, 0], windows, strict=True)
        ]


class Codec(Vocoder):
    """The model that vLLM loads; see the module's docstring."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        dtype = vllm_config.model_config.dtype
        assert isinstance(dtype, torch.dtype)  # noqa: S101 - upstream has resolved its name
        self.codec = decoder_of(config, dtype)
        self.pooler = CodecPooler(self.codec, config.hop_length)

    def is_unused_checkpoint_weight(self, name: str) -> bool:
        """vLLM does not read what this says of."""
        return name.partition(".")[0] not in DECODING

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Parameters and stored buffers by transformers' names; raises ModelUnavailableError if
        any is not there, or has another shape.
        """
        return {f"codec.{name}" for name in load_module(self.codec, weights, "the codec")}
