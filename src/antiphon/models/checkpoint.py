"""Checkpoints that several stages share: whose folder they are, and single rows out of them.

Torch is imported when rows are read. A model that uses a part of its checkpoint keeps vLLM from
reading the other files by a method `is_unused_checkpoint_weight(name)`; vLLM's
`allow_patterns_overrides` takes the files of the first pattern that matches and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.errors import ModelUnavailableError
from antiphon.models.headers import listed, read_header, weight_files

if TYPE_CHECKING:
    import torch


def given(progress: Callable[[str, float | None], None]) -> Path:
    """A stage's `model` where only the operator can say which checkpoint it is.

    Raises ModelUnavailableError: it is called when no folder was named.
    """
    raise ModelUnavailableError(
        "this pipeline comes without a checkpoint: give its folder with --model FOLDER, as"
        " model= in Python, or as `models` in the deployment"
    )


def read_rows(folder: str | Path, name: str, ids: Sequence[int]) -> torch.Tensor:
    """Rows `ids` of the matrix `name`, [len(ids), width] in the dtype that is stored.

    Reads no other row. Raises ModelUnavailableError if the checkpoint has no such matrix, or the
    matrix no such row.
    """
    import torch
    from safetensors import safe_open

    file = Path(folder) / _file_of(folder, name)
    header = read_header(file)
    if name not in header:
        raise ModelUnavailableError(f"{file} has no tensor {name}; the checkpoint is damaged")
    shape = header[name].shape
    if len(shape) != 2:
        raise ModelUnavailableError(f"{name} in {file} has shape {shape}; a matrix is wanted")
    if outside := [row for row in ids if not 0 <= row < shape[0]]:
        raise ModelUnavailableError(
            f"{name} in {file} has {shape[0]} rows, and {listed(outside)} is wanted of it; the"
            " checkpoint's config.json does not fit its weights"
        )
    with safe_open(file, framework="pt") as opened:
        matrix = opened.get_slice(name)
        rows = [matrix[row : row + 1] for row in ids]
        return torch.cat(rows) if rows else matrix[0:1][:0]


def _file_of(folder: str | Path, name: str) -> str:
    files = weight_files(folder)
    if name not in files:
        there = ", ".join(sorted(set(files.values())))
        raise ModelUnavailableError(f"{folder} has no tensor {name} in {there}")
    return files[name]
