"""The drawing network: latents on a grid attend to a text's KV cache and become a picture.

Each latent stands for a patch. In every layer it attends to the keys and values of one of the
thinker's layers and, in the same softmax, to those of all latents: the mixture of transformers of
models that write and draw with one cache (BAGEL is one), small and in one pass. All latents stand
at the position behind the cache; where they lie in the picture is told by coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from antiphon.models.imagine.sizes import DrawSizes
from antiphon.payload.kv import KeysValues

_EPS = 1e-6
_BLEND = 0.6  # width, in patches, of the bell that a latent's colours fade with


class DrawNetwork(nn.Module):
    """One picture per call; nothing is kept between calls."""

    def __init__(self, sizes: DrawSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.variants = nn.Embedding(sizes.variants, sizes.hidden)
        self.places = nn.Linear(sizes.coordinates, sizes.hidden, bias=False)
        self.layers = nn.ModuleList(DrawLayer(sizes) for _ in sizes.kv_layers)
        self.head = ColourHead(sizes)

    def forward(
        self, cache: Sequence[KeysValues], next_position: int, variant: torch.Tensor
    ) -> torch.Tensor:
        """The picture [side, side, 3], from 0 to 1.

        `cache` holds the keys and values of the layers that `sizes.kv_layers` names, in that order,
        each [length, kv_heads, head_size]; `next_position` is the one behind the cache, `variant`
        an index [].
        """
        x = self.places(coordinates(self.sizes.grid, self.sizes.waves).to(variant.device))
        x = x + self.variants(variant)
        turn = rotation(next_position, self.sizes).to(variant.device)
        for layer, (keys, values) in zip(self.layers, cache, strict=True):
            x = layer(x, keys.to(x), values.to(x), turn)
        picture: torch.Tensor = self.head(x)
        return picture


class DrawLayer(nn.Module):
    """Attention over the text's cache and the latents, then a gated network; both add to x."""

    def __init__(self, sizes: DrawSizes) -> None:
        super().__init__()
        self._sizes = sizes
        own = sizes.kv_heads * sizes.head_size
        self.q = nn.Linear(sizes.hidden, sizes.heads * sizes.head_size, bias=False)
        self.k = nn.Linear(sizes.hidden, own, bias=False)
        self.v = nn.Linear(sizes.hidden, own, bias=False)
        self.o = nn.Linear(sizes.heads * sizes.head_size, sizes.hidden, bias=False)
        self.sharpness = nn.Parameter(torch.empty(sizes.heads))  # length of a head's queries
        self.recency = nn.Parameter(torch.empty(sizes.heads))  # lost per position before the end
        self.own_share = nn.Parameter(torch.empty(sizes.heads))  # on top of the latents' own scores
        self.gate = nn.Linear(sizes.hidden, sizes.inner, bias=False)
        self.up = nn.Linear(sizes.hidden, sizes.inner, bias=False)
        self.down = nn.Linear(sizes.inner, sizes.hidden, bias=False)

    def forward(
        self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, turn: torch.Tensor
    ) -> torch.Tensor:
        """x [latents, hidden], the cache's part [length, kv_heads, head_size]; like x."""
        x = x + self.o(self._attend(unit(x), keys, values, turn))
        y = unit(x)
        out: torch.Tensor = x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))
        return out

    def _attend(
        self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, turn: torch.Tensor
    ) -> torch.Tensor:
        sizes = self._sizes
        shape = (len(x), -1, sizes.head_size)
        q = rotated(unit(self.q(x).view(shape)), turn) * self.sharpness[:, None]
        k = torch.cat([keys, rotated(unit(self.k(x).view(shape)), turn)])
        v = torch.cat([values, self.v(x).view(shape)])
        # [heads, latents, length + latents]
        k, v = (t.repeat_interleave(sizes.heads // sizes.kv_heads, 1) for t in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(sizes.head_size)
        scores = scores + self._bias(len(keys), len(x))[:, None]
        # Attention gives sums of values of unlike lengths: what matters is where they point.
        heads = unit(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v))
        return heads.flatten(1)

    def _bias(self, length: int, latents: int) -> torch.Tensor:
        """What is added to all scores of a key: [heads, length + latents]."""
        distance = torch.arange(length, 0, -1, device=self.recency.device)
        own = self.own_share[:, None].expand(-1, latents)
        return torch.cat([-self.recency[:, None] * distance, own], 1)


class ColourHead(nn.Module):
    """Latents to colours: blended between patches, then a small network for each pixel."""

    def __init__(self, sizes: DrawSizes) -> None:
        super().__init__()
        self._sizes = sizes
        self.features = nn.Linear(sizes.hidden, sizes.colours, bias=False)
        self.mood = nn.Linear(sizes.hidden, sizes.colours)
        self.places = nn.Linear(sizes.coordinates, sizes.colours, bias=False)
        self.mix = nn.Linear(sizes.colours, sizes.colours)
        self.out = nn.Linear(sizes.colours, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[latents, hidden] to [side, side, 3]."""
        sizes = self._sizes
        features = self.features(unit(x)) + self.mood(unit(x.mean(0)))
        features = features.view(sizes.grid, sizes.grid, -1)
        blend = blending(sizes.grid, sizes.patch).to(x.device)
        pixels = torch.einsum("ya,xb,abc->yxc", blend, blend, features)
        places = coordinates(sizes.side, sizes.waves).to(x.device)
        pixels = torch.sin(pixels + self.places(places).view(pixels.shape))
        return 0.5 + 0.5 * torch.sin(self.out(torch.sin(self.mix(pixels))))


def unit(x: torch.Tensor) -> torch.Tensor:
    """x with a root mean square of 1 along its last dimension."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + _EPS)


def coordinates(side: int, waves: int) -> torch.Tensor:
    """Sines and cosines of where a grid's cells lie, row by row: [side * side, 4 * waves]."""
    place = (torch.arange(side) + 0.5) / side
    number = torch.arange(1, waves + 1)
    angles = math.pi * place[:, None] * number
    # [side, 2 * waves]; short waves are low, so that pictures are smooth
    line = torch.cat([angles.sin() / number, angles.cos() / number], 1)
    rows = line[:, None].expand(-1, side, -1)
    columns = line[None].expand(side, -1, -1)
    return torch.cat([rows, columns], -1).flatten(0, 1)


def blending(grid: int, patch: int) -> torch.Tensor:
    """How much of each latent is in each pixel, along one side: [grid * patch, grid], rows sum to
    1.
    """
    pixels = (torch.arange(grid * patch) + 0.5) / patch
    distance = pixels[:, None] - (torch.arange(grid) + 0.5)
    return (-(distance**2) / (2 * _BLEND**2)).softmax(-1)


def rotation(position: int, sizes: DrawSizes) -> torch.Tensor:
    """Cosines and sines that rotate a head to `position`, as the thinker's: [2, head_size]."""
    exponents = torch.arange(0, sizes.head_size, 2) / sizes.head_size
    angles = (position * sizes.rope_theta**-exponents).repeat(2)
    return torch.stack([angles.cos(), angles.sin()])


def rotated(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """[…, head_size], its first half turned against its second."""
    first, second = x.chunk(2, -1)
    return x * turn[0] + torch.cat([-second, first], -1) * turn[1]
