"""The drawing network's checkpoint: weights drawn by lot, the same bits on every machine.

Nothing is trained. How the numbers are scaled makes pictures that are smooth, colourful and another
one for every text. Neither torch nor vllm is imported here: the checkpoint is made in the process
that starts the stages.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from antiphon.models.fetch import Progress, build_once, silent
from antiphon.models.imagine.register import DRAW_ARCH
from antiphon.models.imagine.sizes import CONFIG_FILE, DrawSizes

Array = npt.NDArray[np.float32]

_FORMAT = 1  # raised when a weight changes, so that the folder is made anew
_SEED = 11

_SHARPNESS = 1.4  # of attention: enough to tell tokens apart, not so much that one takes all
_RECENCY = (0.0, 1 / 16, 1 / 64, 1 / 16, 1 / 256, 1 / 8)  # by head: some look at all of a text
_OWN_SHARE = -3.0  # hundreds of latents would drown a short text


def draw_checkpoint(progress: Progress = silent) -> Path:
    """Made at the first call, in less than a second; 7 MB in the cache folder."""

    def build(folder: Path) -> None:
        # imported here: only the first run needs it
        from safetensors.numpy import save_file

        progress("making the drawing network", None)
        sizes = DrawSizes()
        tensors = draw_tensors(sizes)
        named = {f"network.{name}": array for name, array in tensors.items()}
        save_file(named, folder / "model.safetensors")
        config = {
            "architectures": [DRAW_ARCH],
            "model_type": "antiphon_imagine_draw",
            "draw": msgspec.to_builtins(sizes),
            "torch_dtype": "float32",
        }
        (folder / CONFIG_FILE).write_text(json.dumps(config, indent=1))

    return build_once(f"imagine-draw-{_FORMAT}", build, progress)


class _Lots:
    """Numbers of equal chance around 0, from numpy's generator that never changes."""

    def __init__(self, seed: int) -> None:
        self._state = np.random.RandomState(seed)

    def draw(self, shape: tuple[int, ...], deviation: float) -> Array:
        drawn = 2 * self._state.random_sample(shape) - 1
        return (math.sqrt(3) * deviation * drawn).astype(np.float32)

    def matrix(self, rows: int, columns: int, gain: float = 1.0) -> Array:
        """Makes of inputs with variance 1 outputs with variance gain²."""
        return self.draw((rows, columns), gain / math.sqrt(columns))


def draw_tensors(sizes: DrawSizes, seed: int = _SEED) -> dict[str, Array]:
    """All weights, by the names of `DrawNetwork`."""
    lots = _Lots(seed)
    tensors = {
        "variants.weight": lots.draw((sizes.variants, sizes.hidden), 0.5),
        "places.weight": lots.matrix(sizes.hidden, sizes.coordinates),
    }
    for index in range(len(sizes.kv_layers)):
        for name, array in _layer(lots, sizes).items():
            tensors[f"layers.{index}.{name}"] = array
    colours = sizes.colours
    return tensors | {
        "head.features.weight": lots.matrix(colours, sizes.hidden, 0.9),
        "head.mood.weight": lots.matrix(colours, sizes.hidden, 4.0),
        "head.mood.bias": lots.draw((colours,), 0.6),
        "head.places.weight": lots.matrix(colours, sizes.coordinates, 2.6),
        "head.mix.weight": lots.matrix(colours, colours, 1.5),
        "head.mix.bias": lots.draw((colours,), 1.8),
        "head.out.weight": lots.matrix(3, colours, 1.1),
        "head.out.bias": np.zeros(3, np.float32),
    }


def _layer(lots: _Lots, sizes: DrawSizes) -> dict[str, Array]:
    queries, keys = sizes.heads * sizes.head_size, sizes.kv_heads * sizes.head_size
    return {
        "q.weight": lots.matrix(queries, sizes.hidden),
        "k.weight": lots.matrix(keys, sizes.hidden),
        "v.weight": lots.matrix(keys, sizes.hidden),
        "o.weight": lots.matrix(sizes.hidden, queries, 0.8),
        "sharpness": np.full(sizes.heads, _SHARPNESS, np.float32),
        "recency": np.resize(np.array(_RECENCY, np.float32), sizes.heads),
        "own_share": np.full(sizes.heads, _OWN_SHARE, np.float32),
        "gate.weight": lots.matrix(sizes.inner, sizes.hidden),
        "up.weight": lots.matrix(sizes.inner, sizes.hidden),
        "down.weight": lots.matrix(sizes.hidden, sizes.inner, 0.7),
    }
