"""What stages that decode have in common: an attention-free pooling model of vLLM, whose forward
pass hands the ids through and whose pooler decodes them.

Where one request's codes end and the next one's begin is known to the pooler only. So a prompt is a
run of codes, and its pooled output the waveform, float32 [samples].
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.pooler import Pooler
from vllm.model_executor.models.interfaces import IsAttentionFree
from vllm.model_executor.models.interfaces_base import attn_type
from vllm.v1.pool.metadata import PoolingMetadata, PoolingStates

from antiphon.models.frame_codes import LEFT


@attn_type("attention_free")
class PoolingModel(nn.Module, IsAttentionFree):
    """What vLLM asks of a model without attention whose output its `pooler` makes."""

    is_pooling_model = True

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        return torch.empty(input_ids.shape[0], 0)


class Vocoder(PoolingModel):
    """A `PoolingModel` whose pooler is a `WaveformPooler`."""

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: object = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        return input_ids


class PluginPooler(Pooler):
    """A pooler of the task that stages submit their requests with."""

    def get_supported_tasks(self) -> set[Any]:
        return {"plugin"}


@dataclass(frozen=True, slots=True)
class Prompt:
    """What comes with a prompt's codes."""

    extra: Mapping[str, Any]  # `PromptPlan.extra`, empty in upstream's trial runs
    state: PoolingStates  # upstream's own, kept between the request's prompts


class WaveformPooler(PluginPooler):
    """Prompt the step's requests, those that are alike in one go.

    Never raises for a request's sake, since that would end the others' too: the input adapter lets
    nothing through that cannot be decoded.
    """

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self._decoder = (decoder,)  # in a tuple: the weights belong to the model, not to the pooler

    @property
    def decoder(self) -> Any:
        return self._decoder[0]

    def forward(
        self, hidden_states: torch.Tensor, pooling_metadata: PoolingMetadata
    ) -> list[torch.Tensor]:
        """`hidden_states` are the ids of the step [num_tokens]; one waveform per request."""
        codes = torch.split(hidden_states.long(), pooling_metadata.prompt_lens.tolist())
        params, states = pooling_metadata.pooling_params, pooling_metadata.pooling_states
        prompts = [
            Prompt(own.extra_kwargs or {}, state) for own, state in zip(params, states, strict=True)
        ]
        groups: defaultdict[Hashable, list[int]] = defaultdict(list)
        for index, (own, prompt) in enumerate(zip(codes, prompts, strict=True)):
            groups[len(own), self.kind(len(own), prompt)].append(index)
        waves: dict[int, torch.Tensor] = {}
        for group in groups.values():
            batch = torch.stack([codes[index] for index in group])
            decoded = self.decode(batch, [prompts[index] for index in group])
            waves.update(zip(group, decoded, strict=True))
        return [waves[index] for index in range(len(codes))]

    def kind(self, length: int, prompt: Prompt) -> Hashable:
        """Prompts of equal length are decoded together where this is equal too."""
        return None

    @abstractmethod
    def decode(self, codes: torch.Tensor, prompts: Sequence[Prompt]) -> Iterable[torch.Tensor]:
        """Waveforms, float32 [samples] each, of codes int64 [n, length], the codes of n prompts."""


class FramePooler(WaveformPooler):
    """Of a codec that has several codes to a frame.

    With `LEFT` in its extra a prompt is one window of a stream, and so many frames are context:
    they were decoded before. A codec may lose a constant number of samples at the end, the tail; so
    what is new begins with the tail of the window before. The samples of all windows in order are
    as many as those of the whole decoded at once.
    """

    def __init__(self, decoder: nn.Module, frame_size: int, samples: int) -> None:
        """`samples`: how many a frame has."""
        super().__init__(decoder)
        self._frame_size, self._samples = frame_size, samples

    def decode(self, codes: torch.Tensor, prompts: Sequence[Prompt]) -> Iterable[torch.Tensor]:
        """What is not a whole frame at the end, as in upstream's trial runs, makes no sound."""
        frames = codes.shape[1] // self._frame_size
        if frames == 0:
            return [codes.new_empty(0, dtype=torch.float32)] * len(codes)
        whole = codes[:, : frames * self._frame_size]
        sound = self.sound(whole.reshape(len(codes), frames, self._frame_size)).float()
        lost = frames * self._samples - sound.shape[1]
        starts = [prompt.extra.get(LEFT, 0) * self._samples - lost for prompt in prompts]
        return [wave[max(0, start) :] for wave, start in zip(sound, starts, strict=True)]

    @abstractmethod
    def sound(self, frames: torch.Tensor) -> torch.Tensor:
        """Waveforms [n, samples] of frames int64 [n, frames, codes of a frame]."""
