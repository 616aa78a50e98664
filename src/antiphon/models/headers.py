"""Checkpoints on disk, as their JSON headers describe them. Imports neither torch nor vllm."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from antiphon.errors import ModelUnavailableError
from antiphon.models.json_files import read_object
from antiphon.pipeline.elements import Stage

INDEX = "model.safetensors.index.json"

_LENGTH_BYTES = 8  # of the header, little-endian, before it
_MOST_HEADER_BYTES = 100_000_000  # safetensors' own limit
_MOST_NAMED = 8  # of the things that an error lists


class TensorHeader(msgspec.Struct):
    """A tensor in a safetensors header; where its bytes are is counted from the header's end."""

    shape: list[int]
    data_offsets: tuple[int, int]


_TENSOR = msgspec.json.Decoder(TensorHeader)


def weight_files(folder: str | Path) -> dict[str, str]:
    """The name of the file that holds each weight: by the index, or by the files' own headers.

    Raises ModelUnavailableError if there are no safetensors files or their headers cannot be read.
    """
    folder = Path(folder)
    index = folder / INDEX
    if index.is_file():
        weight_map = read_object(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ModelUnavailableError(f"{index} has no weight_map")
        return {str(name): str(file) for name, file in weight_map.items()}
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelUnavailableError(f"{folder} has no safetensors files")
    return {name: file.name for file in files for name in read_header(file)}


def weight_bytes(
    folder: str | Path, prefixes: Sequence[str] = (), widest: int | None = None
) -> int:
    """Bytes of the weights whose names begin with one of `prefixes`; of all where there are none.

    `widest` is the size of an element that is loaded in bytes, of one that is stored wider; None
    counts what is stored. 0 where nothing can be read: what is wrong with a checkpoint is for
    others to say.
    """
    folder = Path(folder)
    wanted = tuple(prefixes) or ("",)
    try:
        headers = [read_header(folder / file) for file in set(weight_files(folder).values())]
    except ModelUnavailableError:
        return 0
    return sum(
        _loaded(tensor.data_offsets[1] - tensor.data_offsets[0], math.prod(tensor.shape), widest)
        for header in headers
        for name, tensor in header.items()
        if name.startswith(wanted)
    )


def _loaded(stored: int, elements: int, widest: int | None) -> int:
    return stored if widest is None else min(stored, elements * widest)


def check_checkpoint(folder: str | Path, stage: Stage) -> None:
    """Raise ModelUnavailableError, with everything that is missing, if `stage` cannot run on it.

    Reads headers only.
    """
    folder = Path(folder)
    problems = ["there is no such folder"]
    if folder.is_dir():
        problems = [*_config_problems(folder, stage), *_weight_problems(folder, stage)]
    if problems:
        raise ModelUnavailableError(
            f"{folder} cannot serve stage {stage.name}: {'; '.join(problems)}; give a complete"
            f" checkpoint with --model {stage.name}=FOLDER, in Python as"
            f" model={{'{stage.name}': FOLDER}}"
        )


def _config_problems(folder: Path, stage: Stage) -> list[str]:
    file = folder / "config.json"
    if not file.is_file():
        return ["it has no config.json"]
    try:
        found = read_object(file).get("model_type")
    except ModelUnavailableError as error:
        return [str(error)]
    if stage.model_type is None or found == stage.model_type:
        return []
    return [f"its config.json says model_type {found!r}, and {stage.model_type!r} is wanted"]


def _weight_problems(folder: Path, stage: Stage) -> list[str]:
    try:
        files = weight_files(folder)
    except ModelUnavailableError as error:
        return [str(error)]
    problems = []
    names = sorted(set(files.values()))
    if absent := [name for name in names if not (folder / name).is_file()]:
        problems.append(f"{INDEX} names files that are not there: {listed(absent)}")
    for name in names:
        if name not in absent:
            try:
                read_header(folder / name)
            except ModelUnavailableError as error:
                problems.append(str(error))
    missing = [p for p in stage.weights if not any(name.startswith(p) for name in files)]
    if missing:
        there = sorted({name.split(".")[0] + "." for name in files})
        problems.append(f"no weights begin with {listed(missing)}, only with {listed(there)}")
    return problems


def read_header(file: Path) -> dict[str, TensorHeader]:
    """What a safetensors file says about its tensors, by name; all of them are there.

    The format is https://github.com/huggingface/safetensors#format. Raises ModelUnavailableError.
    """
    try:
        with file.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size - _LENGTH_BYTES
            length = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
            raw = opened.read(length) if length <= min(size, _MOST_HEADER_BYTES) else b""
        entries = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        entries.pop("__metadata__", None)
        tensors = {name: _TENSOR.decode(entry) for name, entry in entries.items()}
    except OSError as error:
        raise ModelUnavailableError(f"{file} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError:
        tensors = None
    if tensors is None or size < length + max(
        (t.data_offsets[1] for t in tensors.values()), default=0
    ):
        raise ModelUnavailableError(
            f"{file} is not a whole safetensors file (a download that was cut off, or a Git LFS"
            " pointer?)"
        )
    return tensors


def listed(things: Sequence[object]) -> str:
    """The first few, and how many more there are."""
    text = ", ".join(str(thing) for thing in things[:_MOST_NAMED])
    rest = len(things) - _MOST_NAMED
    return f"{text} and {rest} more" if rest > 0 else text
