"""Shared memory against other users of the machine, who see every name and can add files.

Modes and names of a run's own files are held in tests/connector (test_connector_shm,
test_connector_segment_files, test_connector_runs), and so are links in the place of a payload.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.connector.runs import RunLock, data_name, kept_name, reclaim_dead_runs
from antiphon.connector.shm import ShmConnector
from antiphon.errors import ConnectorError

SHARED = Path("/dev/shm")  # noqa: S108 - as the system has it; that of other tests is closed
SOMEBODY = 65_534  # the user whose pipeline it is; root is the stranger
TOKEN = "0" * 32

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


@pytest.fixture
def folder() -> Iterator[Path]:
    """As /dev/shm: anybody may add files, and remove their own."""
    with tempfile.TemporaryDirectory(dir=SHARED if SHARED.is_dir() else None) as name:
        Path(name).chmod(0o1777)
        yield Path(name)


@contextlib.contextmanager
def somebody() -> Iterator[None]:
    """Be an ordinary user."""
    os.seteuid(SOMEBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def plant(path: Path, mode: int = 0o666, content: bytes = b"planted") -> Path:
    """A stranger's file."""
    path.write_bytes(content)
    path.chmod(mode)
    return path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("size", [3, 1 << 20])
def test_a_strangers_file_is_no_payload(folder: Path, size: int) -> None:
    with somebody():
        connector = ShmConnector("mine", 1 << 22, folder)
        connector.put("k", [bytes(size)])
    (path,) = (p for p in folder.iterdir() if p.suffix == "")
    path.unlink()
    plant(path, content=bytes(size + 4096))
    with somebody():
        with pytest.raises(ConnectorError, match="belongs to another user"):
            connector.take("k")
        connector.close()
    assert path.exists()


def test_a_strangers_file_takes_no_room(folder: Path) -> None:
    """Whoever gives the names of what has been taken to files of their own would fill the books."""
    with somebody():
        producer, consumer = (ShmConnector("mine", 100, folder) for _ in range(2))
        producer.put("k", [bytes(80)])
        (path,) = (p for p in folder.iterdir() if p.suffix == "")
        consumer.take("k")
    plant(path, mode=0)
    with somebody():
        producer.put("l", [bytes(80)])
        assert producer.statistics().bytes_held == 80
        producer.check_integrity()
        consumer.close()
        producer.close()
    assert names(folder) == {path.name}


def test_a_strangers_file_beside_a_run_keeps_nobody_from_ending(folder: Path) -> None:
    """It cannot be removed, as it is the stranger's; everything of the run's own is."""
    planted = plant(folder / data_name("mine", TOKEN))
    with somebody():
        connector = ShmConnector("mine", 1 << 22, folder)
        connector.put("k", [bytes(3)])
        connector.close()
    assert names(folder) == {planted.name}


def test_a_strangers_file_beside_a_dead_run_keeps_nobody_from_starting(folder: Path) -> None:
    """The next start removes what is its own, and goes on."""
    planted = plant(folder / data_name("dead", TOKEN), mode=0)
    directory = folder / data_name("dead", "1" * 32)
    directory.mkdir()
    with somebody():
        (folder / data_name("dead", "2" * 32)).touch()
        (folder / "antiphon-dead.lock").touch()
        assert reclaim_dead_runs(folder) == 1
    assert names(folder) == {planted.name, directory.name}


@pytest.mark.parametrize("mode", [0, 0o666])
def test_a_strangers_lock_is_none(folder: Path, mode: int) -> None:
    """Whoever waited for it would wait as long as the stranger likes."""
    plant(folder / "antiphon-mine.lock", mode)
    with somebody():
        (folder / data_name("mine", TOKEN)).touch()
        assert reclaim_dead_runs(folder) == 0
        with pytest.raises(ConnectorError, match="cannot be joined"):
            RunLock("mine", folder)
    assert "antiphon-mine.lock" in names(folder)


@pytest.mark.parametrize("name", ["antiphon-mine.lock", kept_name("mine", TOKEN)])
def test_links_are_not_followed(folder: Path, name: str) -> None:
    """Not even to a file of the user's own, which would be locked, or taken for a segment."""
    with somebody():
        secret = folder / "secret"
        secret.write_bytes(b"secret")
    (folder / name).symlink_to(secret)
    with somebody():
        if name.endswith(".lock"):
            with pytest.raises(ConnectorError, match="cannot be joined"):
                RunLock("mine", folder)
        else:
            ShmConnector("mine", 1 << 22, folder).close()
        reclaim_dead_runs(folder)
        assert secret.read_bytes() == b"secret"
    assert (folder / name).is_symlink()


def test_the_dead_runs_of_others_are_theirs(folder: Path) -> None:
    theirs = {
        plant(folder / name, mode=0o600).name
        for name in (data_name("theirs", TOKEN), "antiphon-theirs.lock")
    }
    with somebody():
        assert reclaim_dead_runs(folder) == 0
    assert names(folder) == theirs


def test_nobody_else_can_read_or_replace_a_payload(folder: Path) -> None:
    """What the modes are for."""
    connector = ShmConnector("mine", 1 << 22, folder)
    connector.put("small", [bytes(3)])
    connector.put("large", [bytes(1 << 20)])
    with somebody():
        for path in folder.iterdir():
            with pytest.raises(PermissionError):
                path.open("rb")
            with pytest.raises(PermissionError):
                path.unlink()
            with pytest.raises(PermissionError):
                path.replace(folder / "elsewhere")
    connector.close()
    assert names(folder) == set()
