"""The JSON files of a checkpoint. Imports neither torch nor vllm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from antiphon.errors import ModelUnavailableError


def read_object(file: Path) -> dict[str, Any]:
    """The object that a file holds. Raises ModelUnavailableError if it holds none."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelUnavailableError(f"{file} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ModelUnavailableError(f"{file} does not hold a JSON object")
    return found
