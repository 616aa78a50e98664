"""Shared memory: files, modes, other processes, and what is left when something goes wrong."""

from __future__ import annotations

import gc
import mmap
import os
import re
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.connector.runs import shm_directory
from antiphon.connector.segments import SEGMENT_BYTES
from antiphon.connector.shm import ShmConnector
from antiphon.errors import AntiphonError, ConnectorError
from antiphon.testing.fault_table import Fault


@pytest.fixture
def connector(run: str, tmp_path: Path) -> Iterator[ShmConnector]:
    made = ShmConnector(run, 1 << 21, tmp_path)
    yield made
    made.check_integrity()
    made.close()


def failure(fault: Fault) -> type[AntiphonError]:
    """What the table says that it raises."""
    assert fault.error is not None
    return fault.error


def payload_files(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.suffix != ".lock"]


def test_file_names_are_of_fixed_length_and_say_nothing(
    connector: ShmConnector, run: str, tmp_path: Path
) -> None:
    connector.put("a caller's id/../x", [b"1"])
    connector.put("b" * 3000, [b"2"])
    names = [path.name for path in payload_files(tmp_path)]
    assert len(names) == 2
    assert all(re.fullmatch(f"antiphon-{run}-[0-9a-f]{{32}}", name) for name in names)


def test_files_are_readable_by_their_owner_only(connector: ShmConnector, tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        connector.put("k", [b"1"])
    finally:
        os.umask(old)
    for path in payload_files(tmp_path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_taking_unlinks_at_once(connector: ShmConnector, tmp_path: Path) -> None:
    connector.put("k", [b"1"])
    view = connector.take("k")
    assert payload_files(tmp_path) == []
    assert bytes(view) == b"1"


def test_a_dropped_view_gives_its_mapping_back(connector: ShmConnector) -> None:
    connector.put("k", [bytes(100)])
    view = connector.take("k")
    assert isinstance(view.obj, mmap.mmap)
    mapping = view.obj
    view.release()
    del view
    gc.collect()
    mapping.close()  # raises BufferError if a view were left


def test_another_process_takes(run: str) -> None:
    """The real thing: real shared memory and a real process."""
    producer = ShmConnector(run, 1 << 20)
    try:
        producer.put("k", [b"over ", b"there"])
        code = (
            "import sys; from antiphon.connector.shm import ShmConnector\n"
            "c = ShmConnector(sys.argv[1], 1 << 20)\n"
            "sys.stdout.write(bytes(c.take('k')).decode())\n"
            "c.put('answer', [b'and back'])\n"
            "sys.stdout.flush(); import os; os._exit(0)\n"  # dies without closing
        )
        done = subprocess.run(
            [sys.executable, "-c", code, run], capture_output=True, text=True, check=True
        )
        assert done.stdout == "over there"
        assert producer.statistics().entries == 0
        assert bytes(producer.take("answer")) == b"and back"
    finally:
        producer.close()
    assert list(shm_directory().glob(f"antiphon-{run}*")) == []


def test_1000_puts_and_aborts_leave_the_folder_as_it_was(run: str) -> None:
    """C82: also the lock file is gone."""
    before = set(os.listdir(shm_directory()))
    connector = ShmConnector(run, 1 << 20)
    for number in range(1000):
        connector.put(f"r{number}", [bytes(64)])
        if number % 2:
            connector.delete([f"r{number}"])
    connector.close()
    left = set(os.listdir(shm_directory())) - before
    assert [name for name in left if run in name] == []


def test_a_full_budget_leaves_nothing(run: str, tmp_path: Path) -> None:
    connector = ShmConnector(run, 8, tmp_path)
    with pytest.raises(ConnectorError, match="no room for 9 bytes: 0 of 8"):
        connector.put("k", [bytes(9)])
    assert payload_files(tmp_path) == []
    connector.close()


@pytest.mark.fault("shared-memory-full")
def test_no_space_in_the_folder_is_seen_before_writing(run: str, fault: Fault) -> None:
    free = os.statvfs(shm_directory())
    chunk = bytearray(1 << 26)
    parts = [chunk] * (2 * free.f_bavail * free.f_frsize // len(chunk) + 2)  # one buffer, repeated
    size = len(parts) * len(chunk)
    connector = ShmConnector(run, size, shm_directory())
    try:
        with pytest.raises(failure(fault), match=rf"no room for {size} bytes: .* left\."):
            connector.put("k", parts)
        assert connector.delete(["k"]) == 0
    finally:
        connector.close()


@pytest.mark.fault("shared-memory-full")
def test_a_write_that_fails_half_way_leaves_nothing(
    connector: ShmConnector, tmp_path: Path, fault: Fault
) -> None:
    """The kernel refuses the write after 100 bytes, as it does when memory runs out."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(failure(fault), match="Writing 130 bytes"):
            connector.put("k", [bytes(60), bytes(70)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert payload_files(tmp_path) == []
    assert connector.statistics().bytes_held == 0
    assert connector.put("k", [bytes(130)]) == 130  # the room is not lost


@pytest.mark.parametrize("size", [5, SEGMENT_BYTES // 3 + 1])
def test_the_kernel_may_write_less_than_it_is_given(
    connector: ShmConnector, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    def write_some(fd: int, buffers: list[memoryview]) -> int:
        first = next((buffer for buffer in buffers if buffer.nbytes), memoryview(b""))
        return os.write(fd, first[: size // 2 + 1])

    monkeypatch.setattr(os, "writev", write_some)
    pieces = [b"a" * size, b"", b"b" * size, b"c" * size]
    connector.put("k", pieces)
    assert bytes(connector.take("k")) == b"".join(pieces)


def test_a_link_in_the_place_of_a_payload_is_not_followed(
    connector: ShmConnector, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    secret = tmp_path_factory.mktemp("elsewhere") / "secret"
    secret.write_bytes(b"secret")
    connector.put("k", [b"1"])
    (path,) = payload_files(tmp_path)
    path.unlink()
    path.symlink_to(secret)
    with pytest.raises(ConnectorError, match="Mapping key 'k'"):
        connector.take("k")
    with pytest.raises(ConnectorError, match="stored already"):
        connector.put("k", [b"2"])
    assert secret.read_bytes() == b"secret"
    path.unlink()


def test_the_ledger_does_not_grow_with_what_others_took(run: str) -> None:
    """C50: 1,000 payloads pass, far below the budget."""
    producer, consumer = ShmConnector(run, 1 << 30), ShmConnector(run, 1)
    for number in range(1000):
        producer.put(f"k{number}", [b"1"])
        consumer.take(f"k{number}")
    assert len(producer._ledger) <= 256
    producer.close()
    consumer.close()


def test_integrity_notices_a_file_of_another_size(run: str, tmp_path: Path) -> None:
    connector = ShmConnector(run, 1 << 20, tmp_path)
    connector.put("k", [b"123"])
    (path,) = payload_files(tmp_path)
    path.write_bytes(b"1")
    with pytest.raises(AssertionError, match="size"):
        connector.check_integrity()
    connector.close()


def test_a_folder_that_cannot_be_used_is_a_connector_error(run: str, tmp_path: Path) -> None:
    with pytest.raises(ConnectorError, match="cannot be joined"):
        ShmConnector(run, 1 << 20, tmp_path / "missing")
