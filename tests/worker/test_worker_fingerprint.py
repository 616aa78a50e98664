"""Checkpoints with other weights are told apart without reading all of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from antiphon.worker.fingerprint import SAMPLE, model_fingerprint

CONFIG: dict[str, Any] = {"hidden_size": 64, "rope": {"theta": 1e4}, "dtype": "float32"}
SIZE = 3_000_000


def checkpoint(folder: Path, *files: bytes) -> str:
    folder.mkdir(exist_ok=True)
    for index, data in enumerate(files):
        (folder / f"model-{index}.safetensors").write_bytes(data)
    (folder / "tokenizer.json").write_text("{}")
    return str(folder)


@pytest.fixture
def weights() -> bytearray:
    return bytearray(os.urandom(SIZE))


def test_the_same_checkpoint_elsewhere_is_the_same(tmp_path: Path, weights: bytearray) -> None:
    one, other = (checkpoint(tmp_path / name, weights, weights[:9]) for name in "ab")
    config = CONFIG | {"_name_or_path": "b", "transformers_version": "9", "dtype": "bfloat16"}
    assert model_fingerprint(one, CONFIG) == model_fingerprint(other, config)
    (tmp_path / "b" / "tokenizer.json").write_text("{1}")
    assert model_fingerprint(one, CONFIG) == model_fingerprint(other, CONFIG)


@pytest.mark.parametrize("part", [0, 0.1, 0.5, 0.77, 1])
def test_a_layer_that_was_trained_on_is_noticed(
    tmp_path: Path, weights: bytearray, part: float
) -> None:
    """A fiftieth of the weights, wherever it is, in a file of the same size."""
    one = checkpoint(tmp_path / "a", weights)
    size = SIZE // 50
    start = int(part * (SIZE - size))
    weights[start : start + size] = os.urandom(size)
    other = checkpoint(tmp_path / "b", weights)
    assert model_fingerprint(one, CONFIG) != model_fingerprint(other, CONFIG)


@pytest.mark.parametrize("change", ["length", "name", "files"])
def test_other_files_are_another_checkpoint(
    tmp_path: Path, weights: bytearray, change: str
) -> None:
    one, other = (checkpoint(tmp_path / name, weights) for name in "ab")
    file = tmp_path / "b" / "model-0.safetensors"
    match change:
        case "length":
            file.write_bytes(weights + b"\0")
        case "name":
            file.rename(file.with_name("model-9.safetensors"))
        case "files":
            file.with_name("model-9.bin").write_bytes(b"more")
    assert model_fingerprint(one, CONFIG) != model_fingerprint(other, CONFIG)


def test_what_else_decides_the_numbers(tmp_path: Path) -> None:
    one = checkpoint(tmp_path / "a", b"w")
    prints = {
        model_fingerprint(one, CONFIG),
        model_fingerprint(one, CONFIG | {"hidden_size": 65}),
        model_fingerprint(one, CONFIG | {"rope": {"theta": 1e5}}),
        model_fingerprint(one, CONFIG, "awq"),
        model_fingerprint(one, CONFIG, None, 3),
    }
    assert len(prints) == 5


def test_a_single_file_and_a_mere_name(tmp_path: Path) -> None:
    """GGUF files; and names that the engine resolves itself, which say which model it is."""
    files = [tmp_path / name for name in ("a.gguf", "b.gguf")]
    for file in files:
        file.write_bytes(file.name.encode())
    prints = [model_fingerprint(str(file), CONFIG) for file in files]
    prints += [model_fingerprint(f"org/{name}", CONFIG) for name in ("one", "two")]
    prints.append(model_fingerprint(checkpoint(tmp_path / "c"), CONFIG))
    assert len(set(prints)) == len(prints)


def test_the_end_of_a_large_file_counts(tmp_path: Path) -> None:
    """300 MB, of which hardly anything is on disk."""
    model = checkpoint(tmp_path / "a", b"")
    file = tmp_path / "a" / "model-0.safetensors"
    with file.open("wb") as stream:
        stream.truncate(300_000_000)
    before = model_fingerprint(model, CONFIG)
    with file.open("r+b") as stream:
        stream.seek(-SAMPLE // 2, os.SEEK_END)
        stream.write(b"x")
    assert model_fingerprint(model, CONFIG) != before


def test_one_small_tensor_makes_another_model(tmp_path: Path) -> None:
    """Evenly spread samples miss it: it is a hundredth of what lies between two of them."""
    tensors = {"large": torch.zeros(4 << 20), "small": torch.ones(512), "rest": torch.zeros(9999)}
    prints = []
    for name in "ab":
        folder = tmp_path / name
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors")
        prints.append(model_fingerprint(str(folder), CONFIG))
        tensors["small"] = tensors["small"] + 1e-3
    assert prints[0] != prints[1]


def test_a_damaged_header_is_no_header(tmp_path: Path) -> None:
    """What it says is not trusted; samples of the bytes count still."""
    headers = [b'{"t": {"data_offsets": [0]}}', b'{"t": 3}', b"[1]", b"{", b'{"t": {}}']
    files = [len(text).to_bytes(8, "little") + text + bytes(99) for text in headers]
    prints = {
        model_fingerprint(checkpoint(tmp_path / str(index), data), CONFIG)
        for index, data in enumerate(files)
    }
    assert len(prints) == len(files)
