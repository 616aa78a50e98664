"""Run ownership: the dead are reclaimed, the living are left alone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from antiphon.connector.runs import (
    RunLock,
    new_run_token,
    reclaim_dead_runs,
    remove_payloads,
    remove_run,
    shm_directory,
)
from antiphon.connector.segments import SEGMENT_BYTES
from antiphon.connector.shm import ShmConnector
from antiphon.errors import ConnectorError

OWNER = """
import sys
from pathlib import Path
from antiphon.connector.runs import RunLock
from antiphon.connector.shm import ShmConnector
run, directory = sys.argv[1], Path(sys.argv[2])
lock = RunLock(run, directory)
connector = ShmConnector(run, 1 << 20, directory)
for number in range(5):
    connector.put(f"k{number}", [bytes(10)])
print("ready", flush=True)
sys.stdin.read()
"""


def start_owner(run: str, directory: Path) -> subprocess.Popen[str]:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, run, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    return owner


def end(owner: subprocess.Popen[str]) -> None:
    owner.send_signal(signal.SIGKILL)
    owner.communicate(timeout=30)


def test_a_killed_owner_is_reclaimed_and_a_living_one_is_not(run: str, tmp_path: Path) -> None:
    """C82: SIGKILL runs no cleanup; the next start does."""
    owner = start_owner(run, tmp_path)
    try:
        assert len(os.listdir(tmp_path)) == 6
        assert reclaim_dead_runs(tmp_path) == 0
        assert len(os.listdir(tmp_path)) == 6
    finally:
        end(owner)
    assert reclaim_dead_runs(tmp_path) == 1
    assert os.listdir(tmp_path) == []


def test_real_shared_memory_of_a_killed_owner_is_reclaimed(run: str) -> None:
    owner = start_owner(run, shm_directory())
    end(owner)
    assert len(list(shm_directory().glob(f"antiphon-{run}*"))) == 6
    assert reclaim_dead_runs() >= 1
    assert list(shm_directory().glob(f"antiphon-{run}*")) == []


def test_a_run_lives_while_any_of_its_processes_does(run: str, tmp_path: Path) -> None:
    """The orchestrator is gone, a stage is not: its payloads stay until it is gone too."""
    stage = ShmConnector(run, 1 << 20, tmp_path)
    stage.put("k", [b"x"])
    end(start_owner(run, tmp_path))
    assert reclaim_dead_runs(tmp_path) == 0
    assert bytes(stage.take("k")) == b"x"
    stage.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("suffix", ["", ".kept"])
def test_payloads_without_a_lock_file_belong_to_nobody(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"antiphon-dead-{'0' * 32}{suffix}").write_bytes(b"x")
    assert reclaim_dead_runs(tmp_path) == 1
    assert os.listdir(tmp_path) == []


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    names = ["antiphon-notes.txt", "antiphon-run-short", "sem.other", f"x-antiphon-r-{'0' * 32}"]
    for name in names:
        (tmp_path / name).touch()
    assert reclaim_dead_runs(tmp_path) == 0
    assert sorted(os.listdir(tmp_path)) == sorted(names)


def test_reclaiming_leaves_a_run_that_was_just_started(run: str, tmp_path: Path) -> None:
    lock = RunLock(run, tmp_path)
    (tmp_path / f"antiphon-dead-{'0' * 32}").touch()
    assert reclaim_dead_runs(tmp_path) == 1
    assert [path.name for path in tmp_path.iterdir()] == [f"antiphon-{run}.lock"]
    lock.close()


def test_the_last_holder_removes_the_run(run: str, tmp_path: Path) -> None:
    first, second = RunLock(run, tmp_path), RunLock(run, tmp_path)
    stray = tmp_path / f"antiphon-{run}-{'1' * 32}"
    stray.touch()
    first.close()
    assert stray.exists()
    second.close()
    second.close()
    assert os.listdir(tmp_path) == []


def test_removing_a_run_leaves_the_others(tmp_path: Path) -> None:
    one, two = ShmConnector("one", 100, tmp_path), ShmConnector("two", 100, tmp_path)
    one.put("k", [b"x"])
    two.put("k", [b"x"])
    assert remove_run("one", tmp_path) == 1
    assert len(os.listdir(tmp_path)) == 2
    assert bytes(two.take("k")) == b"x"
    one.close()
    two.close()


def test_payloads_of_some_units_are_removed_and_no_others(tmp_path: Path) -> None:
    connector, other = (ShmConnector(run, 4 * SEGMENT_BYTES, tmp_path) for run in "ab")
    try:
        for key in ("u1.0/e/0/0", "u1.0/e/0/1", "u1.1/e/0/0", "u10.0/e/0/0"):
            connector.put(key, [b"x"])
        other.put("u1.0/e/0/0", [b"x"])
        connector.put("u1.0/large/0/0", [bytes(SEGMENT_BYTES)])  # its file is kept besides
        assert remove_payloads("a", ["u1.0", "u9.0"], tmp_path) == 3
        for key in ("u1.1/e/0/0", "u10.0/e/0/0"):
            assert bytes(connector.take(key)) == b"x"
        assert bytes(other.take("u1.0/e/0/0")) == b"x"
        with pytest.raises(ConnectorError, match="is not stored"):
            connector.take("u1.0/e/0/0")
        connector.check_integrity()
        assert remove_payloads("a", [], tmp_path) == 0
    finally:
        connector.close()
        other.close()
    assert list(tmp_path.iterdir()) == []


def test_starting_and_reclaiming_at_once_never_loses_a_live_run(tmp_path: Path) -> None:
    """Locks are taken on files that others are removing; every put must still be found."""

    def live(number: int) -> bytes:
        data = b""
        for turn in range(20):
            connector = ShmConnector(f"run{number}", 100, tmp_path)
            connector.put("k", [str(turn).encode()])
            reclaim_dead_runs(tmp_path)
            data = bytes(connector.take("k"))
            connector.close()
        return data

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(live, range(4))) == [b"19"] * 4
    reclaim_dead_runs(tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("run", ["", "*", "a/b", "a-b", "..", "x" * 33, "a\n"])
def test_a_run_has_a_plain_name(run: str, tmp_path: Path) -> None:
    with pytest.raises(ConnectorError, match="cannot name a run"):
        RunLock(run, tmp_path)
    with pytest.raises(ConnectorError, match="cannot name a run"):
        remove_run(run, tmp_path)


def test_run_tokens_are_random_and_valid() -> None:
    tokens = {new_run_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(re.fullmatch("[0-9a-f]{16}", token) for token in tokens)
