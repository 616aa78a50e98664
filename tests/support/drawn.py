"""The drawing network once more, in plain numpy and double precision, and caches to draw from.

Written from what the network is meant to compute, head by head and key by key, without its code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from transformers import LlamaForCausalLM

from antiphon.models.imagine.sizes import DrawSizes
from antiphon.payload.kv import KeysValues

Array = npt.NDArray[np.float64]
Weights = Mapping[str, npt.NDArray[np.float32]]


def cache_of(
    model: LlamaForCausalLM, token_ids: Sequence[int], first_position: int = 0
) -> dict[str, KeysValues]:
    """Keys and values [length, heads, size] of these tokens by transformers, by vLLM's names."""
    positions = torch.arange(first_position, first_position + len(token_ids))[None]
    with torch.inference_mode():
        ran = model(torch.tensor([list(token_ids)]), position_ids=positions, use_cache=True)
    return {
        f"model.layers.{number}.self_attn.attn": (
            layer.keys[0].transpose(0, 1).contiguous(),
            layer.values[0].transpose(0, 1).contiguous(),
        )
        for number, layer in enumerate(ran.past_key_values.layers)
    }


def drawn(
    weights: Weights,
    sizes: DrawSizes,
    cache: Mapping[str, KeysValues],
    next_position: int,
    variant: int,
) -> Array:
    """The picture [side, side, 3]; `weights` by the network's names."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    cells = [(row, column) for row in range(sizes.grid) for column in range(sizes.grid)]
    places = np.stack([_place(row, column, sizes.grid, sizes.waves) for row, column in cells])
    x = places @ w["places.weight"].T + w["variants.weight"][variant]
    for index, name in enumerate(sizes.kv_layers):
        own = {
            key.split(".", 2)[2]: a for key, a in w.items() if key.startswith(f"layers.{index}.")
        }
        x = _layer(own, sizes, x, cache[name], next_position)
    return _colours(w, sizes, x)


def _layer(
    w: Mapping[str, Array], sizes: DrawSizes, x: Array, cache: KeysValues, position: int
) -> Array:
    keys, values = (part.double().numpy() for part in cache)
    size, length = sizes.head_size, len(keys)
    y = _unit(x)
    attended = []
    for head in range(sizes.heads):
        kv = head * sizes.kv_heads // sizes.heads
        rows = slice(head * size, (head + 1) * size)
        kv_rows = slice(kv * size, (kv + 1) * size)
        q = _turned(_unit(y @ w["q.weight"][rows].T), position, sizes.rope_theta)
        k = _turned(_unit(y @ w["k.weight"][kv_rows].T), position, sizes.rope_theta)
        v = y @ w["v.weight"][kv_rows].T
        q = q * w["sharpness"][head] / math.sqrt(size)
        text = q @ keys[:, kv].T
        for token in range(length):
            text[:, token] -= w["recency"][head] * (length - token)
        scores = np.concatenate([text, q @ k.T + w["own_share"][head]], 1)
        odds = np.exp(scores - scores.max(1, keepdims=True))
        odds /= odds.sum(1, keepdims=True)
        attended.append(_unit(odds[:, :length] @ values[:, kv] + odds[:, length:] @ v))
    x = x + np.concatenate(attended, 1) @ w["o.weight"].T
    y = _unit(x)
    gate = y @ w["gate.weight"].T
    return x + (gate / (1 + np.exp(-gate)) * (y @ w["up.weight"].T)) @ w["down.weight"].T


def _colours(w: Mapping[str, Array], sizes: DrawSizes, x: Array) -> Array:
    mood = _unit(x.mean(0)) @ w["head.mood.weight"].T + w["head.mood.bias"]
    latents = (_unit(x) @ w["head.features.weight"].T + mood).reshape(sizes.grid, sizes.grid, -1)
    bells = np.stack([_bell(pixel, sizes) for pixel in range(sizes.side)])
    picture = np.empty((sizes.side, sizes.side, 3))
    for row in range(sizes.side):
        line = bells @ np.tensordot(bells[row], latents, 1)  # [side, colours]
        places = [_place(row, column, sizes.side, sizes.waves) for column in range(sizes.side)]
        line = np.sin(line + np.stack(places) @ w["head.places.weight"].T)
        line = np.sin(line @ w["head.mix.weight"].T + w["head.mix.bias"])
        picture[row] = line @ w["head.out.weight"].T + w["head.out.bias"]
    return (1 + np.sin(picture)) / 2


def _unit(x: Array) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)


def _turned(x: Array, position: int, theta: float) -> Array:
    """Rotary embedding as a product of complex numbers, whose parts are the halves of a head."""
    half = x.shape[-1] // 2
    angles = position / theta ** (np.arange(half) / half)
    turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], 1)


def _place(row: int, column: int, side: int, waves: int) -> Array:
    features: list[float] = []
    for at in ((row + 0.5) / side, (column + 0.5) / side):
        features += [math.sin(math.pi * at * wave) / wave for wave in range(1, waves + 1)]
        features += [math.cos(math.pi * at * wave) / wave for wave in range(1, waves + 1)]
    return np.array(features)


def _bell(pixel: int, sizes: DrawSizes) -> Array:
    distance = (pixel + 0.5) / sizes.patch - (np.arange(sizes.grid) + 0.5)
    weight = np.exp(-(distance**2) / (2 * 0.6**2))
    return weight / weight.sum()
