"""From codec ids to a waveform: codebook, decoder, the decoder blocks of hibari and its
source-filter synthesis.

A code stands for 25 ms: two frames of 12.5 ms, 600 samples at 24 kHz.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from hibari import dsp
from torch import nn

FRAMES_PER_CODE = 2
_BINS = dsp.N_FFT // 2 + 1
_LOG_PITCH_SCALE, _LOG_PITCH_SHIFT = 3.0, 5.3  # how the codec was trained: 3 * (ln f0 - 5.3)


@dataclass(frozen=True, slots=True)
class CodecSizes:
    """Dimensions of the decoder, as stored in the checkpoint's config."""

    codes: int = 2048
    code_dim: int = 48
    hidden: int = 256
    layers: int = 3
    inner: int = 512
    tail_layers: int = 4
    tail_inner: int = 768
    spectrum: int = 3005
    tail_eps: float = 1e-6


class ConvNeXt(nn.Module):
    """Depthwise convolution over time, then two pointwise layers, added to the input. [batch,
    time, dim].
    """

    def __init__(self, dim: int, inner: int, eps: float, kernel: int = 7) -> None:
        super().__init__()
        self.dw = nn.Conv1d(dim, dim, kernel, padding=kernel // 2, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=eps)
        self.pw1 = nn.Linear(dim, inner)
        self.pw2 = nn.Linear(inner, dim)
        self.gamma = nn.Parameter(torch.empty(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.dw(x.transpose(1, 2)).transpose(1, 2))
        y = self.pw2(nn.functional.gelu(self.pw1(y)))
        out: torch.Tensor = x + self.gamma * y
        return out


class CodecDecoder(nn.Module):
    """Codes to the network outputs that the synthesis needs."""

    def __init__(self, sizes: CodecSizes) -> None:
        super().__init__()
        dim = sizes.hidden
        self.codebook = nn.Embedding(sizes.codes, sizes.code_dim)
        self.expand = nn.Linear(sizes.code_dim, dim)
        self.blocks = nn.ModuleList(ConvNeXt(dim, sizes.inner, 1e-6) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(dim)
        self.to_features = nn.Linear(dim, FRAMES_PER_CODE * dim)
        self.to_pitch = nn.Linear(dim, FRAMES_PER_CODE * 2)
        self.mean = nn.Parameter(torch.empty(dim))
        self.std = nn.Parameter(torch.empty(dim))
        self.tail = nn.ModuleList(
            ConvNeXt(dim, sizes.tail_inner, sizes.tail_eps) for _ in range(sizes.tail_layers)
        )
        self.tail_norm = nn.LayerNorm(dim, eps=sizes.tail_eps)
        self.head = nn.Linear(dim, sizes.spectrum)

    def forward(self, codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[batch, n] codes to the spectrum parts [batch, 2n, 3005] and the pitch in Hz [batch,
        2n], 0 if unvoiced.
        """
        batch, frames = codes.shape[0], FRAMES_PER_CODE * codes.shape[1]
        x = self.expand(self.codebook(codes))
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        # [batch, n, 4]: log pitch of both frames, then how voiced each is
        pitch, voiced = self.to_pitch(x).split(FRAMES_PER_CODE, dim=-1)
        hertz = torch.exp(pitch / _LOG_PITCH_SCALE + _LOG_PITCH_SHIFT) * (voiced > 0)
        x = self.to_features(x).reshape(batch, frames, -1) * self.std + self.mean
        for block in self.tail:
            x = block(x)
        return self.head(self.tail_norm(x)), hertz.reshape(batch, frames)


def synthesise(
    spectrum: npt.NDArray[np.float32], pitch: npt.NDArray[np.float32], seed: int
) -> npt.NDArray[np.float32]:
    """The waveform [300 * frames] of one utterance from spectrum parts [frames, 3005] and pitch
    [frames].

    The noise comes from `seed` alone, so the result never depends on what else is being
    synthesised.
    """
    parts = [np.ascontiguousarray(part) for part in spectrum.T.reshape(5, _BINS, -1)]
    wave: npt.NDArray[np.float32] = dsp.synth(*parts, pitch, np.random.default_rng(seed))
    return wave
