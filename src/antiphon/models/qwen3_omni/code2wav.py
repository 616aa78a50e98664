"""The vocoder of Qwen3-Omni as a stage of vLLM: an attention-free pooling model around the module
of transformers. A prompt is a run of codes, frame by frame; its pooled output the waveform, float32
[samples].

With `left` in its `extra_kwargs` a prompt is one window of a stream of frames, and the first `left`
frames are context: they were decoded before. Decoding loses a constant number of samples at the
end, the tail, so what is new begins with the tail of the window before. Samples of all windows in
order are as many as those of the whole decoded at once.

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
from transformers import PretrainedConfig, Qwen3OmniMoeCode2Wav
from vllm.config import VllmConfig
from vllm.model_executor.layers.pooler import Pooler
from vllm.model_executor.models.interfaces import IsAttentionFree
from vllm.model_executor.models.interfaces_base import attn_type
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper
from vllm.v1.pool.metadata import PoolingMetadata

from antiphon.models.whole_weights import every_weight

WEIGHTS = "code2wav."
LEFT = "left"
"""Key of `PromptPlan.extra`: frames of context that a window begins with."""


class WaveformPooler(Pooler):
    """Decodes the step's requests, those of equal length in one forward pass.

    Never raises for a request's sake, since that would end the others' too: codes beyond the last
    whole frame are left out, and `left` is held to the frames that there are.
    """

    def __init__(self, codec: Qwen3OmniMoeCode2Wav) -> None:
        super().__init__()
        self._codec = (codec,)  # in a tuple: the weights belong to the model, not to the pooler
        self._groups = codec.config.num_quantizers
        self._samples = int(codec.total_upsample)  # of a frame

    def get_supported_tasks(self) -> set[Any]:
        return {"plugin"}

    def forward(
        self, hidden_states: torch.Tensor, pooling_metadata: PoolingMetadata
    ) -> list[torch.Tensor]:
        """`hidden_states` are the ids of the step [num_tokens]; one waveform per request."""
        lengths = pooling_metadata.prompt_lens.tolist()
        frames = [
            codes[: len(codes) // self._groups * self._groups].view(-1, self._groups)
            for codes in torch.split(hidden_states.long(), lengths)
        ]
        alike: defaultdict[int, list[int]] = defaultdict(list)
        for index, own in enumerate(frames):
            alike[len(own)].append(index)
        waves = [torch.empty(0)] * len(frames)
        for count, indices in alike.items():
            if count == 0:  # of upstream's trial runs
                continue
            # [n, 1, samples], of codes [n, groups, frames]
            decoded = self._codec[0](torch.stack([frames[i].T for i in indices]))
            for index, wave in zip(indices, decoded[:, 0].float(), strict=True):
                extra = pooling_metadata.pooling_params[index].extra_kwargs or {}
                left = min(extra.get(LEFT, 0), count)
                lost = count * self._samples - len(wave)
                waves[index] = wave[max(0, left * self._samples - lost) :]
        return waves


@attn_type("attention_free")
class Code2Wav(nn.Module, IsAttentionFree):
    """The model that vLLM loads; see the module's docstring."""

    is_pooling_model = True
    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={"thinker.": None, "talker.": None, WEIGHTS: "codec."}
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config
        self.codec = Qwen3OmniMoeCode2Wav(_codec_config(config.hf_config, config.dtype))
        self.codec.eval()  # type: ignore[no-untyped-call]
        self.pooler = WaveformPooler(self.codec)

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

    @staticmethod
    def is_unused_checkpoint_weight(name: str) -> bool:
        """Lets vLLM leave out files of which this stage needs nothing."""
        return not name.startswith(WEIGHTS)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Raises ModelUnavailableError for a checkpoint that is not complete."""
        with every_weight(self):
            loaded: set[str] = AutoWeightsLoader(self).load_weights(
                weights, mapper=self.hf_to_vllm_mapper
            )
        return loaded


def _codec_config(config: PretrainedConfig, dtype: object) -> Any:
    """transformers' own again: positions are counted in frames, and parts of a model are made in
    the dtype that their configuration names.
    """
    own: Any = copy.deepcopy(config)
    own.max_position_embeddings = config.max_frames
    own.dtype = dtype
    return own
