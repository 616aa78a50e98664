"""What a test does to the weights of a checkpoint, and to those that a stage has loaded."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tiny import Driven


def damaged(folder: str, into: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> str:
    """A copy of a checkpoint with one file of weights, whose weights are changed."""
    shutil.copytree(folder, into)
    (file,) = into.glob("*.safetensors")
    weights = load_file(file)
    change(weights)
    save_file(weights, file, metadata={"format": "pt"})
    return str(into)


def numbers(stage: Driven) -> dict[str, torch.Tensor]:
    """Copies of the model's parameters and buffers, by name."""
    (found,) = _call(stage, "apply_model", _copies)
    return found


def assert_reloads(stage: Driven, *, packed: str = "nothing") -> None:
    """All that a model loads is lost and read again, as when a worker wakes from its deepest sleep:
    every number is what it was.

    Weights with `packed` in their names are in another order: upstream packs experts for the CPU
    when it loads them first, and never again.
    """
    before = numbers(stage)
    _call(stage, "apply_model", _spoil)
    assert any(value.isnan().any() for value in numbers(stage).values())
    _call(stage, "reload_weights")
    after = numbers(stage)
    assert before.keys() == after.keys()
    for found in (before, after):
        found.update({k: v.flatten().sort().values for k, v in found.items() if packed in k})
    lost = [name for name, value in before.items() if not torch.equal(after[name], value)]
    assert lost == []


def _call(stage: Driven, method: str, *args: object) -> list[Any]:
    return stage.host._engine.call_workers(method, *args)


def _spoil(model: nn.Module) -> None:
    """Parameters, and the buffers that a checkpoint holds."""
    for tensor in model.state_dict(keep_vars=True).values():
        tensor.data.fill_(torch.nan if tensor.is_floating_point() else 7)


def _copies(model: nn.Module) -> dict[str, torch.Tensor]:
    found = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: tensor.detach().clone() for name, tensor in found.items()}
