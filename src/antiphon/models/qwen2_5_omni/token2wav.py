"""The vocoder of Qwen2.5-Omni as a stage of vLLM: an attention-free pooling model around
transformers' own module, a diffusion transformer that makes a spectrogram of codes and BigVGAN that
makes a waveform of it. A prompt is an utterance's codes, its pooled output the waveform, float32
[samples] at 24 kHz.

`extra_kwargs` name a speaker of the checkpoint and the seed of the noise. Utterances are decoded
one by one, as transformers' `generate` does: one does not sound different because of its
batch-mates.

Where one request's codes end and the next one's begin is known to the pooler only, so the forward
pass hands the ids through and the pooler decodes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from transformers import Qwen2_5OmniToken2WavModel
from vllm.config import VllmConfig
from vllm.model_executor.layers.pooler import Pooler
from vllm.model_executor.models.interfaces import IsAttentionFree
from vllm.model_executor.models.interfaces_base import attn_type
from vllm.v1.pool.metadata import PoolingMetadata

from antiphon.errors import ModelUnavailableError
from antiphon.models.qwen2_5_omni.noise import OwnNoise
from antiphon.models.qwen2_5_omni.params import SEED, SPEAKER
from antiphon.models.qwen2_5_omni.speakers import Speaker, Speakers

_WEIGHTS = "token2wav."


class WaveformPooler(Pooler):
    """Decodes the step's requests. Never raises for a request's sake, since that would end the
    others' too: `CodesInput` has checked codes, speaker and seed.
    """

    def __init__(self, vocoder: Qwen2_5OmniToken2WavModel, speakers: Mapping[str, Speaker]) -> None:
        super().__init__()
        self._vocoder: tuple[Any] = (vocoder,)  # in a tuple: the weights belong to the model
        self._speakers = speakers
        config: Any = vocoder.config
        self._samples = config.dit_config.repeats * math.prod(config.bigvgan_config.upsample_rates)

    def get_supported_tasks(self) -> set[Any]:
        return {"plugin"}

    def forward(
        self, hidden_states: torch.Tensor, pooling_metadata: PoolingMetadata
    ) -> list[torch.Tensor]:
        """`hidden_states` are the ids of the step [num_tokens]; one waveform per request."""
        codes = torch.split(hidden_states.long(), pooling_metadata.prompt_lens.tolist())
        params = pooling_metadata.pooling_params
        return [
            self._sound(own, request.extra_kwargs or {})
            for own, request in zip(codes, params, strict=True)
        ]

    def _sound(self, codes: torch.Tensor, extra: Mapping[str, Any]) -> torch.Tensor:
        """The waveform of codes [n]. Upstream's trial runs name no speaker: they get silence."""
        speaker = self._speakers.get(extra.get(SPEAKER, ""))
        if speaker is None:
            return torch.zeros(len(codes) * self._samples)
        vocoder = self._vocoder[0]
        where = {"device": codes.device, "dtype": vocoder.dtype}
        with OwnNoise(extra[SEED]):
            waveform: torch.Tensor = vocoder(
                codes[None],
                conditioning=speaker.conditioning.to(**where),
                reference_mel=speaker.reference_mel.to(**where),
            )
        return waveform.reshape(-1).float()


@attn_type("attention_free")
class Token2Wav(nn.Module, IsAttentionFree):
    """The model that vLLM loads; see the module's docstring."""

    is_pooling_model = True

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        model = vllm_config.model_config
        config: Any = model.hf_config
        self.token2wav = Qwen2_5OmniToken2WavModel(config)
        self.token2wav.train(False)
        self.pooler = WaveformPooler(self.token2wav, Speakers(model.model).by_name)

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
        return not name.startswith(_WEIGHTS)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """By transformers' names; what it computes itself (filters, frequencies) is left out.

        Raises ModelUnavailableError if anything is not there.
        """
        wanted = self.state_dict()
        loaded = set()
        for name, weight in weights:
            if name in wanted:
                wanted[name].copy_(weight)
                loaded.add(name)
        if missing := sorted(wanted.keys() - loaded):
            raise ModelUnavailableError(
                f"the checkpoint lacks {len(missing)} weights of the vocoder, the first is"
                f" {missing[0]}; give a complete one"
            )
        return loaded
