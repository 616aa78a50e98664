"""Checkpoints by their headers: what is missing is named, and rows come without the rest."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from antiphon.errors import ModelUnavailableError
from antiphon.models.checkpoint import given, read_rows
from antiphon.models.headers import INDEX, check_checkpoint, weight_files
from antiphon.pipeline.topology import Stage, StageKind

TABLE = "thinker.embed.weight"
STAGE = Stage(
    "talker",
    StageKind.AR,
    "antiphon.models.checkpoint:given",
    model_type="two_part",
    weights=("thinker.", "talker."),
)


def tensors(dtype: torch.dtype = torch.bfloat16) -> dict[str, dict[str, torch.Tensor]]:
    """By file; every element of the table is its own."""
    table = torch.arange(48, dtype=torch.float32).reshape(12, 4).to(dtype)
    return {
        "a.safetensors": {TABLE: table, "thinker.norm": torch.ones(4)},
        "b.safetensors": {"talker.head": torch.zeros(2, 4), "thinker.bias": torch.ones(1)},
        "c.safetensors": {"code2wav.head": torch.zeros(3, 4)},
    }


def write(folder: Path, *, sharded: bool = True) -> Path:
    """A checkpoint in three files with an index, or in one."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "two_part"}))
    parts = tensors()
    if not sharded:
        everything = {name: value for part in parts.values() for name, value in part.items()}
        save_file(everything, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    for file, part in parts.items():
        save_file(part, folder / file, metadata={"format": "pt"})
    names = {name: file for file, part in parts.items() for name in part}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names}))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "model")


def refusal(folder: Path, stage: Stage = STAGE) -> str:
    with pytest.raises(ModelUnavailableError) as caught:
        check_checkpoint(folder, stage)
    return str(caught.value)


def test_only_the_operator_can_say() -> None:
    with pytest.raises(ModelUnavailableError, match="--model FOLDER"):
        given(lambda phase, fraction: None)


@pytest.mark.parametrize("sharded", [True, False])
@pytest.mark.parametrize("ids", [[5], [11, 0, 5, 5], []])
def test_rows_of_a_table(tmp_path: Path, sharded: bool, ids: list[int]) -> None:
    """In the order that is asked for, as stored."""
    rows = read_rows(write(tmp_path / "model", sharded=sharded), TABLE, ids)
    assert rows.dtype == torch.bfloat16
    assert rows.shape == (len(ids), 4)
    assert torch.equal(rows, tensors()["a.safetensors"][TABLE][ids])


def test_table_that_is_not_there(folder: Path) -> None:
    with pytest.raises(ModelUnavailableError, match=r"no tensor x\.weight in a\.safetensors, b"):
        read_rows(folder, "x.weight", [0])


def test_table_that_only_the_index_knows(folder: Path) -> None:
    save_file({"other": torch.zeros(1)}, folder / "a.safetensors")
    with pytest.raises(ModelUnavailableError, match=rf"a\.safetensors has no tensor {TABLE}"):
        read_rows(folder, TABLE, [0])


@pytest.mark.parametrize("row", [-1, 12])
def test_row_outside_the_table(folder: Path, row: int) -> None:
    with pytest.raises(ModelUnavailableError, match=f"has 12 rows, and {row} is wanted"):
        read_rows(folder, TABLE, [3, row])


def test_rows_of_a_vector(folder: Path) -> None:
    with pytest.raises(ModelUnavailableError, match=r"has shape \[4\]; a matrix is wanted"):
        read_rows(folder, "thinker.norm", [0])


def test_files_by_weight(folder: Path, tmp_path: Path) -> None:
    """The files' own headers say the same as the index."""
    by_index = weight_files(folder)
    assert by_index["talker.head"] == "b.safetensors"
    (folder / INDEX).unlink()
    assert weight_files(folder) == by_index
    one = weight_files(write(tmp_path / "one", sharded=False))
    assert one == dict.fromkeys(by_index, "model.safetensors")


@pytest.mark.parametrize("sharded", [True, False])
def test_what_fits_passes(tmp_path: Path, sharded: bool) -> None:
    whole = write(tmp_path / "model", sharded=sharded)
    check_checkpoint(whole, STAGE)
    check_checkpoint(whole, replace(STAGE, model_type=None, weights=()))


def test_no_such_folder(tmp_path: Path) -> None:
    message = refusal(tmp_path / "none")
    assert message.startswith(f"{tmp_path / 'none'} cannot serve stage talker: there is no such")
    assert message.endswith("--model talker=FOLDER, in Python as model={'talker': FOLDER}")


def _wrong_type(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "llama"}')


def _bad_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def _list_for_an_object(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


def _no_weights(folder: Path) -> None:
    for file in [*folder.glob("*.safetensors"), folder / INDEX]:
        file.unlink()


def _absent_shards(folder: Path) -> None:
    (folder / "a.safetensors").unlink()
    (folder / "c.safetensors").unlink()


def _pointer(folder: Path) -> None:
    (folder / "b.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")


def _cut_off(folder: Path) -> None:
    file = folder / "c.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def _cut_off_in_the_header(folder: Path) -> None:
    file = folder / "c.safetensors"
    file.write_bytes(file.read_bytes()[:20])


def _empty(folder: Path) -> None:
    (folder / "c.safetensors").write_bytes(b"")


def _no_map(folder: Path) -> None:
    (folder / INDEX).write_text("{}")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "it has no config.json"),
        (_wrong_type, "says model_type 'llama', and 'two_part' is wanted"),
        (_bad_json, "config.json cannot be read: Expecting property name"),
        (_list_for_an_object, "config.json does not hold a JSON object"),
        (_no_weights, "has no safetensors files"),
        (_absent_shards, "names files that are not there: a.safetensors, c.safetensors"),
        (_pointer, "b.safetensors is not a whole safetensors file"),
        (_cut_off, "c.safetensors is not a whole safetensors file"),
        (_cut_off_in_the_header, "c.safetensors is not a whole safetensors file"),
        (_empty, "c.safetensors is not a whole safetensors file"),
        (_no_map, f"{INDEX} has no weight_map"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(folder)
    found = refusal(folder)
    assert message in found
    assert "\n" not in found


def test_weights_of_another_part(folder: Path) -> None:
    """The prefixes that are there are named with those that are not."""
    message = refusal(folder, replace(STAGE, weights=("thinker.", "vision.", "talk.")))
    expected = "no weights begin with vision., talk., only with code2wav., talker., thinker.;"
    assert expected in message


def test_everything_is_named_at_once(folder: Path) -> None:
    _wrong_type(folder)
    _absent_shards(folder)
    message = refusal(folder, replace(STAGE, weights=("vision.",)))
    for part in ("'llama'", "a.safetensors, c.safetensors", "begin with vision."):
        assert part in message


def test_long_lists_are_cut(folder: Path) -> None:
    names = {f"w{n}.x": f"{n:02}.safetensors" for n in range(11)}
    (folder / INDEX).write_text(json.dumps({"weight_map": names}))
    assert "07.safetensors and 3 more" in refusal(folder)


def test_importing_it_imports_neither_torch_nor_vllm() -> None:
    program = (
        "import sys, antiphon.models.checkpoint, antiphon.models.hub\n"
        "sys.exit(str({'torch', 'vllm', 'huggingface_hub'} & set(sys.modules) or ''))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert not done.stderr.strip()
