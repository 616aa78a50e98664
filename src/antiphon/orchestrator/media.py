"""Sound and pictures, from the tensors that stages put out."""

from __future__ import annotations

import math

import numpy as np

from antiphon.errors import StageError
from antiphon.orchestrator.api import Image, Samples
from antiphon.orchestrator.clients import Frames
from antiphon.stage.messages import Output

_SOUND = frozenset({"float32", "float16", "int16", "int32", "int64"})
_PICTURES = frozenset({"uint8", "float32", "float16"})


def samples_of(output: Output, frames: Frames) -> Samples:
    """The waveform [n] that a step brought. Raises StageError for a dtype that is none."""
    tensor = output.tensor
    if tensor is None or tensor.dtype not in _SOUND:
        raise StageError(f"a stage's output tensor has the unusable dtype {tensor}")
    array = np.frombuffer(frames[tensor.frame], dtype=tensor.dtype)
    return array.reshape(-1).astype(np.float32, copy=False)


def image_of(output: Output, frames: Frames) -> Image:
    """The picture [height, width, 3] that a step brought, a copy of its own.

    Fractions of 1 become 0 to 255, clipped beyond. Raises StageError for a tensor that is no
    picture.
    """
    tensor = output.tensor
    if tensor is None or tensor.dtype not in _PICTURES:
        raise StageError(
            f"a stage's picture has the unusable dtype {tensor and tensor.dtype}; use uint8, or"
            " float32 from 0 to 1"
        )
    shape = tensor.shape
    if len(shape) != 3 or shape[2] != 3 or 0 in shape:
        raise StageError(
            f"a stage's picture has the shape {list(shape)}; it has to be [height, width, 3]"
        )
    array = np.frombuffer(frames[tensor.frame], dtype=tensor.dtype)
    if array.size != math.prod(shape):
        raise StageError(f"a stage's picture of shape {list(shape)} came with {array.size} values")
    array = array.reshape(shape)
    if array.dtype == np.uint8:
        return array.astype(np.uint8)
    if not np.isfinite(array).all():
        raise StageError("a stage's picture has values that are not finite")
    return np.rint(np.clip(array.astype(np.float32), 0, 1) * 255).astype(np.uint8)
