"""The codec's network: from ids through codebook, decoder and the decoder blocks of hibari to what
`synthesis` makes sound of.

A code stands for 25 ms: two frames of 12.5 ms, 600 samples at 24 kHz.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from antiphon.models.voice.synthesis import MARGIN, SPECTRUM_REACH

FRAMES_PER_CODE = 2
_KERNEL = 7  # of every convolution
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

    @property
    def tail_context(self) -> int:
        """Codes on either side of a code whose features its samples depend on."""
        frames = max(self.tail_layers * (_KERNEL // 2) + SPECTRUM_REACH, MARGIN)
        return -(-frames // FRAMES_PER_CODE)

    @property
    def context(self) -> int:
        """Codes on either side of a code that its samples depend on, given the phase."""
        return self.layers * (_KERNEL // 2) + self.tail_context


class ConvNeXt(nn.Module):
    """Depthwise convolution over time, then two pointwise layers, added to the input. [batch,
    time, dim].
    """

    def __init__(self, dim: int, inner: int, eps: float) -> None:
        super().__init__()
        self.dw = nn.Conv1d(dim, dim, _KERNEL, padding=_KERNEL // 2, groups=dim)
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
        self._tail_context = sizes.tail_context
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

    def forward(
        self, codes: torch.Tensor, left: int = 0, right: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[batch, n] codes to the spectrum parts [batch, f, 3005] and the pitch in Hz [batch, f], 0
        if unvoiced.

        The first `left` and the last `right` codes are context. The f frames are those of the other
        codes, and on either side those of the context up to `MARGIN`.
        """
        x = self.expand(self.codebook(codes))
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        # [batch, n, 4]: log pitch of both frames, then how voiced each is
        pitch, voiced = self.to_pitch(x).split(FRAMES_PER_CODE, dim=-1)
        hertz = torch.exp(pitch / _LOG_PITCH_SCALE + _LOG_PITCH_SHIFT) * (voiced > 0)
        hertz = _inner(hertz.flatten(1), FRAMES_PER_CODE * left, FRAMES_PER_CODE * right, MARGIN)
        # Frames are the costly part: from here on only the context that still has an effect.
        x = _inner(x, left, right, self._tail_context)
        left, right = (FRAMES_PER_CODE * min(side, self._tail_context) for side in (left, right))
        x = self.to_features(x).unflatten(-1, (FRAMES_PER_CODE, -1)).flatten(1, 2)
        x = x * self.std + self.mean
        for block in self.tail:
            x = block(x)
        return self.head(self.tail_norm(_inner(x, left, right, MARGIN))), hertz


def _inner(x: torch.Tensor, left: int, right: int, keep: int) -> torch.Tensor:
    """[batch, time, …] with `left` and `right` steps of context, of each only the `keep` inner
    ones.
    """
    return x[:, max(0, left - keep) : x.shape[1] - max(0, right - keep)]
