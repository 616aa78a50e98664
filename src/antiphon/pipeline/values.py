"""What the plain values in topologies and deployments may be."""

from __future__ import annotations

import re
from collections.abc import Mapping

from antiphon.core.options import Scalar

_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)}
_UNITS |= {f"{letter}IB": 1024**power for power, letter in enumerate("KMGT", 1)}
_MOST_BYTES = (1 << 63) - 1  # what crosses to another process
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def is_target(text: str) -> bool:
    """Whether a text has the form "package.module:attribute"."""
    return _TARGET.fullmatch(text) is not None


def is_plain(value: object) -> bool:
    """Whether a value can cross a process boundary: scalars, None, and lists and maps of them."""
    if isinstance(value, list | tuple):
        return all(is_plain(item) for item in value)
    if isinstance(value, Mapping):
        return all(isinstance(k, str) and is_plain(item) for k, item in value.items())
    return value is None or isinstance(value, Scalar)


def scalar_type(value: Scalar) -> type[Scalar]:
    """Which of the four a value is; a truth value is no number."""
    kinds: tuple[type[Scalar], ...] = (bool, int, float, str)
    return next(kind for kind in kinds if isinstance(value, kind))


def parse_bytes(size: int | str) -> int:
    """Bytes of 67108864, "64MiB" or "0.5 GB". Raises ValueError, saying what to write."""
    if isinstance(size, int):
        count = size
    else:
        match = _SIZE.fullmatch(size.strip())
        if match is None or match[2].upper() not in _UNITS:
            raise ValueError(f"{size!r} is not a size; write bytes, or a number with MiB or GiB")
        exact = float(match[1]) * _UNITS[match[2].upper()]
        count = int(min(exact, _MOST_BYTES + 1))
    if not 0 < count <= _MOST_BYTES:
        raise ValueError(f"{size!r} is not a size; it has to be positive, and below 8 EiB")
    return count
