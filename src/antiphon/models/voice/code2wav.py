"""The codec decoder as a stage of vLLM: an attention-free pooling model. A prompt is a run of
codes, its pooled output the waveform, float32 [samples] at 24 kHz.

Without more, a prompt is a whole utterance. With the keys of a `CodeWindow` in `extra_kwargs` it is
one chunk of a stream of codes, and the output is the sound of its new codes, 600 samples each. The
chunks of a request come in order, one prompt at a time; between them a request keeps the phase of
its pulse train, in upstream's own per-request state, and nothing else.

Where one request's codes end and the next one's begin is known to the pooler only, so the forward
pass hands the ids through and the pooler decodes them.
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
from vllm.model_executor.models.utils import AutoWeightsLoader
from vllm.v1.pool.metadata import PoolingMetadata, PoolingStates

from antiphon.models.voice.code2wav_config import Code2WavConfig
from antiphon.models.voice.codec import FRAMES_PER_CODE, CodecDecoder, CodecSizes
from antiphon.models.voice.synthesis import MARGIN, Span, synthesise
from antiphon.models.voice.windows import CodeWindow, window_of


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
    """Decodes the step's requests, those with windows of equal sizes in one forward pass.

    Never raises for a request's sake, since that would end the others' too: see `window_of`; a
    stream whose earlier chunk this pooler has not seen goes on with phase 0.
    """

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
        params = pooling_metadata.pooling_params
        windows = [window_of(p.extra_kwargs, n) for p, n in zip(params, lengths, strict=True)]
        groups: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
        for index, (length, window) in enumerate(zip(lengths, windows, strict=True)):
            groups[length, window.left, window.right].append(index)
        waves: dict[int, torch.Tensor] = {}
        for (_, left, right), indices in groups.items():
            spectrum, pitch = self._decoder[0](
                torch.stack([codes[i] for i in indices]), left, right
            )
            for row, index in enumerate(indices):
                state = pooling_metadata.pooling_states[index]
                waves[index] = self._sound(spectrum[row], pitch[row], windows[index], state)
        return [waves[index] for index in range(len(lengths))]

    def _sound(
        self, spectrum: torch.Tensor, pitch: torch.Tensor, window: CodeWindow, state: PoolingStates
    ) -> torch.Tensor:
        """The waveform of a window's new codes; moves the request's phase on to their end."""
        span = Span(
            first=FRAMES_PER_CODE * window.first,
            left=min(FRAMES_PER_CODE * window.left, MARGIN),
            right=min(FRAMES_PER_CODE * window.right, MARGIN),
        )
        phase = _phase(state, span.first)
        wave, end_phase = synthesise(
            spectrum.float().cpu().numpy(), pitch.float().cpu().numpy(), self._seed, span, phase
        )
        end = span.first + len(pitch) - span.left - span.right
        _keep_phases(state, {span.first: phase, end: end_phase})
        return torch.from_numpy(wave)


def _phase(state: PoolingStates, frame: int) -> float:
    """The phase at the start of `frame`; 0 at the utterance's start and where none is known."""
    known = {int(at): phase for table in state.hidden_states_cache for at, phase in table.tolist()}
    return known.get(frame, 0.0) if frame else 0.0


def _keep_phases(state: PoolingStates, phases: dict[int, float]) -> None:
    """Replace what is kept by these phases at the starts of frames: float64 [n, 2].

    The window's start stays too, so that the same window decoded again gives the same sound.
    """
    state.hidden_states_cache[:] = [torch.tensor(list(phases.items()), dtype=torch.float64)]


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
