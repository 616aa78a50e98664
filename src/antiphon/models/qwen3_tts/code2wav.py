"""The codec's decoder as a stage of vLLM: an attention-free pooling model. A prompt is a run of
codes, frame by frame; its pooled output the waveform, float32 [samples].

With `left` in `extra_kwargs` so many frames are context, and the output is the sound of those
behind them. Nothing is kept between prompts. Where one request's codes end and the next one's begin
is known to the pooler only, so the forward pass hands the ids through and the pooler decodes them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.pooler import Pooler
from vllm.model_executor.models.interfaces import IsAttentionFree
from vllm.model_executor.models.interfaces_base import attn_type
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper
from vllm.v1.pool.metadata import PoolingMetadata

from antiphon.models.qwen3_tts.codec import CodecDecoder
from antiphon.models.qwen3_tts.configs import CodecConfig
from antiphon.models.qwen3_tts.frames import LEFT
from antiphon.models.qwen3_tts.settings import CODEC
from antiphon.models.whole_weights import every_weight

_QUANTIZER = "decoder.quantizer."


class WaveformPooler(Pooler):
    """Decodes the step's requests, those of equal length in one forward pass.

    Never raises for a request's sake, since that would end the others' too: `CodesInput` lets
    nothing through that cannot be decoded. What is not a whole frame at a prompt's end, as in
    upstream's trial runs, makes no sound.
    """

    def __init__(self, decoder: CodecDecoder, frame_size: int) -> None:
        super().__init__()
        self._decoder = (decoder,)  # in a tuple: the weights belong to the model, not to the pooler
        self._frame_size = frame_size

    def get_supported_tasks(self) -> set[Any]:
        return {"plugin"}

    def forward(
        self, hidden_states: torch.Tensor, pooling_metadata: PoolingMetadata
    ) -> list[torch.Tensor]:
        """`hidden_states` are the ids of the step [num_tokens]; one waveform per request."""
        lengths = pooling_metadata.prompt_lens.tolist()
        codes = torch.split(hidden_states.long(), lengths)
        groups: defaultdict[int, list[int]] = defaultdict(list)
        for index, length in enumerate(lengths):
            groups[length // self._frame_size].append(index)
        waves = {i: hidden_states.new_empty(0, dtype=torch.float32) for i in groups.pop(0, ())}
        for frames, indices in groups.items():
            batch = torch.stack([codes[i][: frames * self._frame_size] for i in indices])
            sound = self._decoder[0].decode(batch.view(len(indices), frames, self._frame_size))
            for row, index in enumerate(indices):
                extra = pooling_metadata.pooling_params[index].extra_kwargs or {}
                start = extra.get(LEFT, 0) * self._decoder[0].total_upsample
                waves[index] = sound[row, start:].float()
        return [waves[index] for index in range(len(lengths))]


@attn_type("attention_free")
class Code2Wav(nn.Module, IsAttentionFree):
    """The model that vLLM loads; see the module's docstring."""

    is_pooling_model = True
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
        self.pooler = WaveformPooler(self.decoder, config.num_quantizers)

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
        """Raises ModelUnavailableError if any is missing."""
        with every_weight(self):
            loader = AutoWeightsLoader(self)
            loaded: set[str] = loader.load_weights(weights, mapper=self.hf_to_vllm_mapper)
        return loaded
