"""The decoder of the 12 Hz codec: frames of codes to a waveform, causal throughout.

The official classes (`qwen_tts.core.tokenizer_12hz`, `Qwen3TTSTokenizerV2Decoder`) are not in
transformers. Most of their parts are, in Qwen3-Omni's codec, and are used from there: the
transformer, the causal convolutions, the residual and ConvNeXt blocks, the activation. Different
here: a split residual quantizer in place of one embedding table, projections around the
transformer, and upsampling that cuts off the right end only, so that n frames make exactly
n * `total_upsample` samples. Parameters have the checkpoint's names.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeCausalConvNet,
    Qwen3OmniMoeCode2WavDecoderResidualUnit,
    Qwen3OmniMoeCode2WavTransformerModel,
    Qwen3OmniMoeConvNeXtBlock,
    Qwen3OmniMoeSnakeBeta,
)

from antiphon.models.qwen3_tts.configs import CodecConfig

CHUNK_FRAMES = 300
CONTEXT_FRAMES = 25
"""How the official `chunked_decode` cuts what is long; it bounds the memory of a decode."""

_LEAST_USAGE = 1e-5  # the official codebooks' epsilon


class Codebook(nn.Module):
    """Entries as sums over what was assigned to them, and how much that was."""

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.cluster_usage = nn.Parameter(torch.ones(size))
        self.embedding_sum = nn.Parameter(torch.zeros(size, dim))

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """int64 [batch, frames] → [batch, frames, dim]."""
        entries = self.embedding_sum / self.cluster_usage.clamp(min=_LEAST_USAGE)[:, None]
        return functional.embedding(codes, entries)


class ResidualQuantizer(nn.Module):
    """Several codebooks whose entries add up."""

    def __init__(self, books: int, size: int, dim: int, output_dim: int) -> None:
        super().__init__()
        layers = [nn.ModuleDict({"_codebook": Codebook(size, dim)}) for _ in range(books)]
        self.vq = nn.ModuleDict({"layers": nn.ModuleList(layers)})
        self.output_proj = nn.Conv1d(dim, output_dim, 1, bias=False)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """int64 [batch, books, frames] → [batch, output_dim, frames]."""
        books = [book for book in self.vq.modules() if isinstance(book, Codebook)]
        found = [book(codes[:, i]) for i, book in enumerate(books)]
        total = found[0]
        for part in found[1:]:
            total = total + part
        projected: torch.Tensor = self.output_proj(total.transpose(1, 2))
        return projected


class SplitQuantizer(nn.Module):
    """The first code is looked up apart from the others."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        sizes = (config.codebook_size, config.codebook_dim // 2, config.codebook_dim)
        self.rvq_first = ResidualQuantizer(1, *sizes)
        self.rvq_rest = ResidualQuantizer(config.num_quantizers - 1, *sizes)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """int64 [batch, codes of a frame, frames] → [batch, codebook_dim, frames]."""
        found: torch.Tensor = self.rvq_first(codes[:, :1]) + self.rvq_rest(codes[:, 1:])
        return found


class Transformer(Qwen3OmniMoeCode2WavTransformerModel):  # type: ignore[no-untyped-call]
    """With projections from and to the width of the convolutions."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__(config)
        self.input_proj = nn.Linear(config.latent_dim, config.hidden_size)
        self.output_proj = nn.Linear(config.hidden_size, config.latent_dim)

    def run(self, hidden: torch.Tensor) -> torch.Tensor:
        """[batch, frames, latent_dim] → the same shape."""
        seen = self(inputs_embeds=self.input_proj(hidden)).last_hidden_state
        projected: torch.Tensor = self.output_proj(seen)
        return projected


class Upsampling(nn.Module):
    """A transposed convolution that looks back only."""

    def __init__(self, input_dim: int, output_dim: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(input_dim, output_dim, kernel, stride=stride)
        self._surplus = kernel - stride

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[batch, input_dim, n] → [batch, output_dim, n * stride]."""
        made: torch.Tensor = self.conv(hidden)
        return made[..., : made.shape[-1] - self._surplus].contiguous()


class DecoderBlock(nn.Module):
    """Upsampling and three dilated residual units."""

    def __init__(self, input_dim: int, output_dim: int, rate: int) -> None:
        super().__init__()
        self.block = nn.ModuleList(
            [
                _snake(input_dim),
                Upsampling(input_dim, output_dim, 2 * rate, rate),
                *(Qwen3OmniMoeCode2WavDecoderResidualUnit(output_dim, d) for d in (1, 3, 9)),
            ]
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for part in self.block:
            hidden = part(hidden)
        return hidden


def _convolution(input_dim: int, output_dim: int, kernel: int) -> nn.Module:
    """[batch, input_dim, n] → [batch, output_dim, n]."""
    return Qwen3OmniMoeCausalConvNet(input_dim, output_dim, kernel)  # type: ignore[no-untyped-call]


def _snake(dim: int) -> nn.Module:
    return Qwen3OmniMoeSnakeBeta(dim)  # type: ignore[no-untyped-call]


class CodecDecoder(nn.Module):
    """The whole decoder."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        latent, width, rates = config.latent_dim, config.decoder_dim, config.upsample_rates
        self.total_upsample = math.prod((*rates, *config.upsampling_ratios))
        self.quantizer = SplitQuantizer(config)
        self.pre_conv = _convolution(config.codebook_dim, latent, 3)
        self.pre_transformer = Transformer(config)
        self.upsample = nn.ModuleList(
            nn.ModuleList(
                [
                    Upsampling(latent, latent, ratio, ratio),
                    Qwen3OmniMoeConvNeXtBlock(latent),
                ]
            )
            for ratio in config.upsampling_ratios
        )
        last = width // 2 ** len(rates)
        self.decoder = nn.ModuleList(
            [
                _convolution(latent, width, 7),
                *(
                    DecoderBlock(width // 2**i, width // 2 ** (i + 1), rate)
                    for i, rate in enumerate(rates)
                ),
                _snake(last),
                _convolution(last, 1, 7),
            ]
        )

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """int64 [batch, frames, codes of a frame] → [batch, frames * total_upsample]."""
        hidden = self.pre_conv(self.quantizer(codes.transpose(1, 2))).transpose(1, 2)
        hidden = self.pre_transformer.run(hidden).transpose(1, 2)
        for stage in self.upsample:
            assert isinstance(stage, nn.ModuleList)  # noqa: S101 - made above
            for part in stage:
                hidden = part(hidden)
        for part in self.decoder:
            hidden = part(hidden)
        wave: torch.Tensor = hidden[:, 0].clamp(min=-1, max=1)
        return wave

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """The same in chunks of bounded size, as the official `chunked_decode` cuts them."""
        waves = []
        for start in range(0, codes.shape[1], CHUNK_FRAMES):
            context = min(start, CONTEXT_FRAMES)
            wave = self(codes[:, start - context : start + CHUNK_FRAMES])
            waves.append(wave[:, context * self.total_upsample :])
        return torch.cat(waves, dim=1)
