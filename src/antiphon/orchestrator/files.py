"""Output files: checked before anything starts, and never there half written."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from antiphon.errors import OutputPathError


def check_output_path(path: str | Path) -> Path:
    """The file that writing to `path` will make, links followed.

    Raises OutputPathError if that cannot work: no such folder, a folder or a device of this name,
    no permission. Creates nothing.
    """
    if not str(path).strip():
        raise OutputPathError("the output path is empty; name a file")
    target = Path(path).expanduser().resolve()
    folder = target.parent
    if target.is_dir():
        raise OutputPathError(f"{path} is a folder; name a file in it")
    if not folder.exists():
        raise OutputPathError(f"folder {folder} does not exist; create it or choose another")
    if not folder.is_dir():
        raise OutputPathError(f"{folder} is not a folder; choose another place for {target.name}")
    if target.exists() and not target.is_file():
        raise OutputPathError(f"{path} is not a regular file; choose another name")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputPathError(f"no permission to write into {folder}; choose another folder")
    if target.exists() and not os.access(target, os.W_OK):
        raise OutputPathError(f"no permission to overwrite {path}; choose another name")
    return target


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[tuple[BinaryIO, Path]]:
    """A file to write into, and the path where it appears after that: complete or not at all.

    It is written under another name in the same folder and renamed. Raises OutputPathError.
    """
    target = check_output_path(path)
    partial = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.part")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with os.fdopen(descriptor, "wb") as raw:
            yield raw, target
        partial.replace(target)
    except OSError as error:
        raise OutputPathError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
