"""The checkpoint that an operator names. Nothing here reaches a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.errors import ModelUnavailableError
from antiphon.models.hub import named_folder, progress_bars


def silent(phase: str, fraction: float | None) -> None:
    """Nobody looks."""


def test_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absolute, since stages are processes; a folder wins over a repository of that name."""
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert named_folder("org/name", silent) == tmp_path / "org" / "name"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert named_folder("~/org", silent) == tmp_path / "org"


@pytest.mark.parametrize("name", ["/no/such/folder", "./org/name", "a/b/c", "name", "org/", "-a/b"])
def test_neither_folder_nor_repository(name: str) -> None:
    with pytest.raises(ModelUnavailableError, match="is not a folder: give the folder of"):
        named_folder(name, silent)


def test_repository_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line that says what to do."""
    monkeypatch.setenv("ANTIPHON_OFFLINE", "1")
    with pytest.raises(ModelUnavailableError) as caught:
        named_folder("antiphon-tests/no-such-model", silent)
    message = str(caught.value)
    assert message.startswith("antiphon-tests/no-such-model is neither a folder here nor could it")
    assert "give the folder of a checkpoint" in message
    assert "\n" not in message


def test_repository_that_the_client_refuses() -> None:
    with pytest.raises(ModelUnavailableError, match="give the folder of a checkpoint"):
        named_folder("org/name--", silent)


def test_repository_in_the_cache(tmp_path: Path) -> None:
    """Hugging Face's own layout, read by its own client; it reads the variable at import."""
    commit = "0" * 40
    repository = tmp_path / "models--org--name"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    program = (
        "from antiphon.models.hub import named_folder\n"
        "print(named_folder('org/name', lambda phase, fraction: None))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "HF_HUB_CACHE": str(tmp_path), "ANTIPHON_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == str(snapshot)


def test_bars_tell_and_draw_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """The files make the fraction; bytes, in bars of their own, are told beside it."""
    seen: list[tuple[str, float | None]] = []
    bars = progress_bars("org/name", lambda phase, fraction: seen.append((phase, fraction)))
    received = bars(desc="Downloading bytes", total=0, initial=0, unit="B", unit_scale=True)
    received.total += 3 * 10**9
    received.update(25 * 10**8)
    received.refresh()
    with bars(total=4, desc="Fetching 4 files") as files:
        files.update(3)
        files.refresh()
    received.close()
    assert seen[-1] == ("fetching org/name, 2.5 GB", 0.75)
    assert capsys.readouterr() == ("", "")
