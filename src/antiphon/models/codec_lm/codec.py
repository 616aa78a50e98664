"""A codec's decoder as a stage of vLLM: an attention-free pooling model around transformers' own
module. A prompt is a run of codes, its pooled output the waveform, float32 [samples].

With the keys of a `CodeWindow` in `extra_kwargs` the prompt is one chunk of a stream and the output
is the sound of its new codes, as many samples for each as the codec has. Nothing is kept between
chunks.

Where one request's codes end and the next one's begin is known to the pooler only, so the forward
pass hands the ids through and the pooler decodes them.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, PretrainedConfig
from vllm.config import VllmConfig
from vllm.model_executor.layers.pooler import Pooler
from vllm.model_executor.models.interfaces import IsAttentionFree
from vllm.model_executor.models.interfaces_base import attn_type
from vllm.v1.pool.metadata import PoolingMetadata

from antiphon.errors import ModelUnavailableError
from antiphon.models.codec_lm.codecs import DECODING
from antiphon.models.voice.windows import window_of


def decoder_of(config: PretrainedConfig, dtype: torch.dtype) -> nn.Module:
    """transformers' model of this config without its encoders, which decoding does not use.

    transformers makes whole models only; the large encoder is made without layers.
    """
    bare = copy.deepcopy(config)
    bare.semantic_model_config.num_hidden_layers = 0
    codec: nn.Module = AutoModel.from_config(bare, dtype=dtype)  # type: ignore[no-untyped-call]
    for name, _ in list(codec.named_children()):
        if f"{name}." not in DECODING:
            delattr(codec, name)
    return codec.eval()


class WaveformPooler(Pooler):
    """Decodes the step's requests, those of equal length in one forward pass.

    Never raises for a request's sake, since that would end the others' too: see `window_of`.
    """

    def __init__(self, codec: nn.Module, hop: int) -> None:
        super().__init__()
        self._codec: tuple[Any] = (codec,)  # in a tuple: the weights belong to the model
        self._hop = hop

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
            groups[length].append(index)
        waves: dict[int, torch.Tensor] = {}
        for length, indices in groups.items():
            batch = torch.stack([codes[i] for i in indices]).unsqueeze(1)
            sound = self._codec[0].decode(audio_codes=batch).audio_values  # [n, 1, length * hop]
            for row, index in enumerate(indices):
                extra = pooling_metadata.pooling_params[index].extra_kwargs
                window = window_of(extra, length)
                start, stop = window.left * self._hop, (length - window.right) * self._hop
                waves[index] = sound[row, 0, start:stop].float()
        return [waves[index] for index in range(len(lengths))]


@attn_type("attention_free")
class Codec(nn.Module, IsAttentionFree):
    """The model that vLLM loads; see the module's docstring."""

    is_pooling_model = True

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        dtype = vllm_config.model_config.dtype
        assert isinstance(dtype, torch.dtype)  # noqa: S101 - upstream has resolved its name
        self.codec = decoder_of(config, dtype)
        self.pooler = WaveformPooler(self.codec, config.hop_length)

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

    def is_unused_checkpoint_weight(self, name: str) -> bool:
        """vLLM does not read what this says of."""
        return not name.startswith(DECODING)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Parameters and stored buffers by transformers' names; raises ModelUnavailableError if
        any is not there.
        """
        wanted = self.codec.state_dict()
        loaded = set()
        for name, weight in weights:
            if name in wanted:
                wanted[name].copy_(weight)
                loaded.add(name)
        if missing := sorted(wanted.keys() - loaded):
            raise ModelUnavailableError(
                f"the codec's checkpoint lacks {len(missing)} weights, the first is {missing[0]};"
                " give a complete one in transformers' format"
            )
        return {f"codec.{name}" for name in loaded}
