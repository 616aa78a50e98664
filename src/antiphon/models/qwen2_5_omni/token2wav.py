"""The vocoder of Qwen2.5-Omni as a stage of vLLM: an attention-free pooling model around
transformers' own module, a diffusion transformer that makes a spectrogram of codes and BigVGAN that
makes a waveform of it. A prompt is an utterance's codes, its pooled output the waveform, float32
[samples] at 24 kHz.

`extra_kwargs` name a speaker of the checkpoint and the seed of the noise. Utterances are decoded
one by one, as transformers' `generate` does: one does not sound different because of its
batch-mates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from transformers import Qwen2_5OmniToken2WavModel
from vllm.config import VllmConfig

from antiphon.models.loading import load_module
from antiphon.models.qwen2_5_omni.noise import OwnNoise
from antiphon.models.qwen2_5_omni.params import SEED, SPEAKER
from antiphon.models.qwen2_5_omni.speakers import Speaker, Speakers
from antiphon.models.vocoder import Prompt, Vocoder, WaveformPooler

_WEIGHTS = "token2wav."


class SpeechPooler(WaveformPooler):
    """`CodesInput` has checked codes, speaker and seed."""

    def __init__(self, vocoder: Qwen2_5OmniToken2WavModel, speakers: Mapping[str, Speaker]) -> None:
        super().__init__(vocoder)
        self._speakers = speakers
        config: Any = vocoder.config
        self._samples = config.dit_config.repeats * math.prod(config.bigvgan_config.upsample_rates)

    def decode(self, codes: torch.Tensor, prompts: Sequence[Prompt]) -> list[torch.Tensor]:
        return [self._sound(own, at.extra) for own, at in zip(codes, prompts, strict=True)]

    def _sound(self, codes: torch.Tensor, extra: Mapping[str, Any]) -> torch.Tensor:
        """The waveform of codes [n]. Upstream's trial runs name no speaker: they get silence."""
        speaker = self._speakers.get(extra.get(SPEAKER, ""))
        if speaker is None:
            return torch.zeros(len(codes) * self._samples)
        where = {"device": codes.device, "dtype": self.decoder.dtype}
        with OwnNoise(extra[SEED]):
            waveform: torch.Tensor = self.decoder(
                codes[None],
                conditioning=speaker.conditioning.to(**where),
                reference_mel=speaker.reference_mel.to(**where),
            )
        return waveform.reshape(-1).float()


class Token2Wav(Vocoder):
    """The model that vLLM loads; see the module's docstring."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        model = vllm_config.model_config
        config: Any = model.hf_config
        self.token2wav = Qwen2_5OmniToken2WavModel(config)
        self.token2wav.train(False)
        self.pooler = SpeechPooler(self.token2wav, Speakers(model.model).by_name)

    @staticmethod
    def is_unused_checkpoint_weight(name: str) -> bool:
        """Lets vLLM leave out files of which this stage needs nothing."""
        return not name.startswith(_WEIGHTS)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """By transformers' names; what it computes itself (filters, frequencies) is left out.

        Raises ModelUnavailableError if anything is not there, or has another shape.
        """
        return load_module(self, weights, "the vocoder")
