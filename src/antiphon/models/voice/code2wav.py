"""The codec decoder as a stage of vLLM: an attention-free pooling model. A prompt is a run of
codes, its pooled output the waveform, float32 [samples] at 24 kHz.

Nothing is kept between requests. Where one request's codes end and the next one's begin is known
to the pooler only, so the forward pass hands the ids through and the pooler decodes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.pooler import Pooler
from vllm.model_executor.models.interfaces import IsAttentionFree
from vllm.model_executor.models.interfaces_base import attn_type
from vllm.model_executor.models.utils import AutoWeightsLoader
from vllm.v1.pool.metadata import PoolingMetadata

from antiphon.models.voice.code2wav_config import Code2WavConfig
from antiphon.models.voice.codec import CodecDecoder, CodecSizes, synthesise


def sizes_of(config: Code2WavConfig) -> CodecSizes:
    """The decoder's dimensions out of a checkpoint's config."""
    return CodecSizes(
        codes=config.vocab_size,
        code_dim=config.code_dim,
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        inner=config.decoder_inner,
        tail_layers=config.tail_layers,
        tail_inner=config.tail_inner,
        spectrum=config.spectrum_size,
        tail_eps=config.tail_norm_eps,
    )


class WaveformPooler(Pooler):
    """Decodes the step's requests, those of equal length in one forward pass."""

    def __init__(self, decoder: CodecDecoder, seed: int) -> None:
        super().__init__()
        self._decoder = (decoder,)  # in a tuple: the weights belong to the model, not to the pooler
        self._seed = seed

    def get_supported_tasks(self) -> set[Any]:
        return {"plugin"}

    def forward(
        self, hidden_states: torch.Tensor, pooling_metadata: PoolingMetadata
    ) -> list[torch.Tensor]:
        """`hidden_states` are the ids of the step [num_tokens]; one waveform per request."""
        lengths = pooling_metadata.prompt_lens.tolist()
        codes = torch.split(hidden_states.long(), lengths)
        groups: dict[int, list[int]] = {}
        for index, length in enumerate(lengths):
            groups.setdefault(length, []).append(index)
        waves: dict[int, torch.Tensor] = {}
        for indices in groups.values():
            spectrum, pitch = self._decoder[0](torch.stack([codes[i] for i in indices]))
            for row, index in enumerate(indices):
                wave = synthesise(
                    spectrum[row].float().cpu().numpy(),
                    pitch[row].float().cpu().numpy(),
                    self._seed,
                )
                waves[index] = torch.from_numpy(wave)
        return [waves[index] for index in range(len(lengths))]


@attn_type("attention_free")
class Code2Wav(nn.Module, IsAttentionFree):
    """The model that vLLM loads; see the module's docstring."""

    is_pooling_model = True

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        assert isinstance(config, Code2WavConfig)  # noqa: S101 - the checkpoint's model_type
        self.decoder = CodecDecoder(sizes_of(config)).eval()
        self.pooler = WaveformPooler(self.decoder, config.noise_seed)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        return torch.empty(input_ids.shape[0], 0)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: object = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        return input_ids

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        loaded: set[str] = AutoWeightsLoader(self).load_weights(weights)
        return loaded
