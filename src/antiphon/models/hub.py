"""The checkpoint that an operator names: a folder, or a Hugging Face repository, fetched once."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from antiphon.env import offline
from antiphon.errors import ModelUnavailableError

_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_COPIES = ["*.bin", "*.gguf", "*.h5", "*.msgpack", "*.onnx"]  # of the weights, in other formats

Progress = Callable[[str, float | None], None]


def named_folder(name: str, progress: Progress) -> Path:
    """The folder `name`, or that of the repository `name` in Hugging Face's cache.

    Blocks while it is fetched. Raises ModelUnavailableError if it is neither, or cannot be fetched.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder.absolute()
    if not _REPOSITORY.fullmatch(name):
        raise ModelUnavailableError(
            f"{name} is not a folder: give the folder of a checkpoint, or a Hugging Face repository"
            " as owner/name"
        )
    return _fetch(name, progress)


def _fetch(repository: str, progress: Progress) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    # Its bases are OSError and that of all errors of the HTTP client, which depends on the version.
    failures: tuple[type[Exception], ...] = (ValueError, *HfHubHTTPError.__bases__)
    progress(f"looking for {repository}", None)
    try:
        return Path(
            snapshot_download(
                repository,
                local_files_only=offline(),
                ignore_patterns=_COPIES,
                tqdm_class=progress_bars(repository, progress),
            )
        )
    except failures as error:
        reason = " ".join(str(error).split())
        raise ModelUnavailableError(
            f"{repository} is neither a folder here nor could it be fetched from Hugging Face:"
            f" give the folder of a checkpoint ({reason})"
        ) from error


def progress_bars(repository: str, progress: Progress) -> type[Any]:
    """A class of tqdm bars that draw nothing and tell `progress`.

    The hub's client makes one bar of all files, whose total is known, and others of bytes, whose
    totals grow as files are begun: the files make the fraction and the bytes are told beside it.
    """
    from tqdm.auto import tqdm

    files, gigabytes = 0.0, 0.0

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "file": io.StringIO()})

        def display(self, msg: str | None = None, pos: int | None = None) -> bool:
            nonlocal files, gigabytes
            if self.unit == "B":
                gigabytes = max(gigabytes, self.n / 1e9)
            elif self.total:
                files = self.n / self.total
            progress(f"fetching {repository}, {gigabytes:.1f} GB", files)
            return True

    return Bar
