"""Pictures as PNG files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from antiphon.orchestrator.files import whole_file


def save_png(path: str | Path, image: npt.NDArray[np.uint8]) -> Path:
    """Write `image` [height, width, 3] (red, green, blue); returns the file's path.

    The file appears complete or not at all. Raises OutputPathError.
    """
    from PIL import Image  # only who writes a picture pays for loading it

    with whole_file(path) as (raw, target):
        Image.fromarray(np.ascontiguousarray(image)).save(raw, format="PNG")
    return target
