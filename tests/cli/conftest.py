"""The real command in a process of its own, with a sample pipeline installed beside it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import sample_pipeline
from commands import Antiphon, command

SUPPORT = Path(sample_pipeline.__file__).parent


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """An empty folder that commands run in."""
    place = tmp_path / "work"
    place.mkdir()
    return place


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of commands: it has pipelines of other packages, of which one is broken."""
    site = tmp_path / "site"
    site.mkdir()
    points = {
        "sample": "sample_pipeline:TOPOLOGY",
        "halves": "kv_pipelines:HALVES",
        "painting": "kv_pipelines:PAINTING",
        "broken": "no_such_module:TOPOLOGY",
    }
    sample_pipeline.install(site, points)
    path = os.pathsep.join([str(site), str(SUPPORT)])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def antiphon(workplace: Path, environment: dict[str, str]) -> Antiphon:
    """Run `antiphon …` to its end."""

    def run(
        *arguments: str, stdin: str = "", settings: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(arguments),
            cwd=workplace,
            env=environment | (settings or {}),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run
