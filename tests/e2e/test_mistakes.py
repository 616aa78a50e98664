"""Texts that cannot be served: one line, exit code 2, before any stage starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from leftovers import run_files, stage_processes

pytestmark = pytest.mark.timeout(300)  # on a new machine the models are fetched first


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["say", "…", "--out", "x.wav"], "nothing to speak"),
        (["say", "word " * 9000, "--out", "x.wav"], "split it"),
        (["chat", "word " * 4000, "--out", "x.wav"], "shorten it"),
    ],
)
def test_impossible_texts(tmp_path: Path, arguments: list[str], reason: str) -> None:
    files, processes = run_files(), stage_processes()
    done = subprocess.run(
        [sys.executable, "-m", "antiphon.cli.main", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("antiphon: error: ")
    assert reason in line
    assert list(tmp_path.iterdir()) == []
    assert run_files() == files
    assert stage_processes() == processes
