"""The parts of a payload: thousands of pieces, written one behind the other."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from antiphon.connector.base import Buffer

_BATCH = os.sysconf("SC_IOV_MAX")  # pieces that one call of the kernel takes


def as_bytes(parts: Sequence[Buffer]) -> list[memoryview]:
    """The same memory, byte by byte."""
    return [memoryview(part).cast("B") for part in parts]


def copy(views: Sequence[memoryview], target: npt.NDArray[np.uint8]) -> list[memoryview]:
    """Fill `target`, uint8 [n], from its beginning; returns what there was no room for.

    Other threads run meanwhile: numpy lets go of the interpreter, slices of a memoryview do not.
    """
    offset = 0
    for index, view in enumerate(views):
        end = offset + view.nbytes
        if end > target.nbytes:
            room = target.nbytes - offset
            target[offset:] = np.frombuffer(view[:room], np.uint8)
            return [view[room:], *views[index + 1 :]]
        target[offset:end] = np.frombuffer(view, np.uint8)
        offset = end
    return []


def write(fd: int, views: Sequence[memoryview]) -> None:
    """Write all of it where the descriptor stands. Raises OSError, with a part written."""
    rest = list(views)
    done = 0  # pieces
    while done < len(rest):
        written = os.writev(fd, rest[done : done + _BATCH])
        while done < len(rest) and written >= rest[done].nbytes:
            written -= rest[done].nbytes
            done += 1
        if written:
            rest[done] = rest[done][written:]
