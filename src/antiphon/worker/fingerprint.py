"""What tells two checkpoints apart without reading all of them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
SAMPLE = 4096  # bytes
SAMPLES = 64  # of each weight file, evenly spread
# Of a model's config: where it came from, who wrote it, and the dtype, which caches state.
_IDLE = frozenset({"_name_or_path", "name_or_path", "transformers_version", "dtype", "torch_dtype"})


def model_fingerprint(model: str, config: Mapping[str, object], *numerics: object) -> str:
    """Equal for engines whose weights compute the same caches, up to the dtype.

    `model` is the checkpoint's folder or file, or a name that stands for it; `config` its
    configuration as the engine uses it; `numerics` what else changes the numbers, such as a
    quantization. Of each weight file its name, its size and samples count: 64 evenly spread ones,
    and of safetensors one in the middle of each tensor, since whatever changes a tensor changes
    most of it. Raises OSError for files that cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    kept = {key: value for key, value in config.items() if key not in _IDLE}
    digest.update(json.dumps([kept, numerics], sort_keys=True, default=str).encode())
    path = Path(model)
    if not path.exists():
        digest.update(model.encode())
    for file in _weight_files(path):
        size = file.stat().st_size
        digest.update(f"\n{file.name} {size}\n".encode())
        with file.open("rb", buffering=0) as stream:
            fd = stream.fileno()
            for place in [*_places(size), *_tensors(fd, size)]:
                digest.update(os.pread(fd, SAMPLE, place))
    return digest.hexdigest()


def _weight_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    found = path.iterdir() if path.is_dir() else ()
    return sorted(file for file in found if file.suffix in WEIGHTS)


def _places(size: int) -> list[int]:
    """Where samples begin: at the file's beginning and end, and evenly between them."""
    last = max(0, size - SAMPLE)
    return sorted({last * index // (SAMPLES - 1) for index in range(SAMPLES)})


def _tensors(fd: int, size: int) -> list[int]:
    """Where the middles of a safetensors file's tensors lie; none if it is no such file.

    The format: 8 bytes little-endian length of the header, the header as JSON, the tensors.
    """
    length = int.from_bytes(os.pread(fd, 8, 0), "little")
    if length > size:
        return []
    try:
        header = json.loads(os.pread(fd, length, 8))
        spans = [entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"]
        middles = [8 + length + max(a, (a + b - SAMPLE) // 2) for a, b in spans]
    except (ValueError, TypeError, KeyError, AttributeError):
        return []
    return sorted(middles)
