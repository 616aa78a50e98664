"""The network's checkpoint is made here, at the first use, and is the same everywhere."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from antiphon.models.imagine.network import DrawNetwork
from antiphon.models.imagine.sizes import DrawSizes
from antiphon.models.imagine.weights import draw_checkpoint, draw_tensors

# Of all bits. A change is a new format of the checkpoint: raise `_FORMAT`, and see what it draws.
DIGEST = "be87eec39956c1a4"


def test_it_is_made_without_a_network(empty_cache_folder: Path) -> None:
    """In an empty cache folder; the second call finds it there."""
    seen: list[str] = []
    folder = draw_checkpoint(lambda phase, fraction: seen.append(phase))
    assert folder.parent == empty_cache_folder
    assert seen == ["making the drawing network"]
    assert draw_checkpoint() == folder
    assert DrawSizes.read(folder) == DrawSizes()
    stored = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float32}
    assert sum(tensor.numel() for tensor in stored.values()) < 3_000_000
    network = DrawNetwork(DrawSizes())
    network.load_state_dict({name.removeprefix("network."): t for name, t in stored.items()})


def test_its_bits_are_pinned() -> None:
    digest = hashlib.sha256()
    for name, array in sorted(draw_tensors(DrawSizes()).items()):
        digest.update(name.encode())
        digest.update(array.astype("<f4").tobytes())
    assert digest.hexdigest()[:16] == DIGEST


def test_another_seed_gives_other_weights() -> None:
    one, two = draw_tensors(DrawSizes(), seed=1), draw_tensors(DrawSizes(), seed=2)
    assert not np.array_equal(one["layers.0.q.weight"], two["layers.0.q.weight"])


def test_making_it_imports_neither_torch_nor_vllm(empty_cache_folder: Path) -> None:
    """It is made in the caller's process, which has neither."""
    program = (
        "import sys\n"
        "from antiphon.models.imagine.weights import draw_checkpoint\n"
        "draw_checkpoint()\n"
        "heavy = [name for name in ('vllm', 'torch', 'transformers') if name in sys.modules]\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
