"""The codec decoder as a stage of vLLM: an attention-free pooling model. A prompt is a run of
codes, its pooled output the waveform, float32 [samples] at 24 kHz.

Without more, a prompt is a whole utterance. With the keys of a `CodeWindow` in `extra_kwargs` it is
one chunk of a stream of codes, and the output is the sound of its new codes, 600 samples each. The
chunks of a request come in order, one prompt at a time; between them a request keeps the phase of
its pulse train, in upstream's own per-request state, and nothing else.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import torch
from vllm.config import VllmConfig
from vllm.model_executor.models.utils import AutoWeightsLoader
from vllm.v1.pool.metadata import PoolingStates

from antiphon.models.code_windows import CodeWindow, window_of
from antiphon.models.vocoder import Prompt, Vocoder, WaveformPooler
from antiphon.models.voice.code2wav_config import Code2WavConfig
from antiphon.models.voice.codec import FRAMES_PER_CODE, CodecDecoder, CodecSizes
from antiphon.models.voice.synthesis import MARGIN, Span, synthesise


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


class CodecPooler(WaveformPooler):
    """A window that `window_of` refuses is a whole utterance; a stream whose earlier chunk this
    pooler has not seen goes on with phase 0.
    """

    def __init__(self, decoder: CodecDecoder, seed: int) -> None:
        super().__init__(decoder)
        self._seed = seed

    def kind(self, length: int, prompt: Prompt) -> Hashable:
        window = window_of(prompt.extra, length)
        return window.left, window.right

    def decode(self, codes: torch.Tensor, prompts: Sequence[Prompt]) -> list[torch.Tensor]:
        windows = [window_of(prompt.extra, codes.shape[1]) for prompt in prompts]
        spectra, pitches = self.decoder(codes, windows[0].left, windows[0].right)
        made = zip(spectra, pitches, windows, prompts, strict=True)
        return [self._sound(spectrum, pitch, at, own.state) for spectrum, pitch, at, own in made]

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


class Code2Wav(Vocoder):
    """The model that vLLM loads; see the module's docstring."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        assert isinstance(config, Code2WavConfig)  # noqa: S101 - the checkpoint's model_type
        self.decoder = CodecDecoder(sizes_of(config)).eval()
        self.pooler = CodecPooler(self.decoder, config.noise_seed)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        loaded: set[str] = AutoWeightsLoader(self).load_weights(weights)
        return loaded
