"""The documents say what the repository holds."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import antiphon
from antiphon.env import VARIABLES
from antiphon.observe import docs as metrics
from antiphon.pipeline import docs as keys
from antiphon.testing import fault_docs as faults
from antiphon.upstream import docs as symbols
from source import ROOT

DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize(
    ("page", "render"),
    [
        ("upstream-symbols.md", symbols.render),
        ("deployment.md", keys.render),
        ("metrics.md", metrics.render),
        ("faults.md", faults.render),
    ],
)
def test_generated_pages_are_up_to_date(page: str, render: Callable[[], str]) -> None:
    written = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert written == render(), "run `make docs`"


def _functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_difference_from_upstream_names_a_test_that_exists() -> None:
    text = (ROOT / "docs" / "differences.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line][1:]
    assert rows
    for row in rows:
        found = re.search(r"`(tests/[\w/]+\.py)::(\w+)` \|$", row)
        assert found, row
        assert found[2] in _functions(ROOT / found[1]), row


def test_every_difference_that_is_tested_is_listed() -> None:
    text = (ROOT / "docs" / "differences.md").read_text(encoding="utf-8")
    tests = _functions(ROOT / "tests" / "upstream" / "test_differences.py")
    assert {name for name in tests if name.startswith("test_") and name not in text} == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8"))
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_examples_use_public_names(document: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", document.read_text(encoding="utf-8"), re.S):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module == "antiphon":
                assert {alias.name for alias in node.names} <= set(antiphon.__all__)


def test_every_environment_variable_is_documented() -> None:
    text = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    for variable in VARIABLES:
        assert f"| `{variable.name}` | {variable.default} | {variable.meaning} |" in text


def test_the_readme_names_the_two_commands() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert "make demo" in lines
    assert "make test" in lines


def test_make_alone_lists_the_targets() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "-C", str(ROOT)],  # noqa: S607  the user's own make
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert {"make demo", "make test", "make lint"} <= {
        " ".join(line.split()[:2]) for line in done.stdout.splitlines()
    }


def test_the_licence_is_the_plain_text() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Version 2.0, January 2004" in text
    assert "Copyright [yyyy] [name of copyright owner]" in text


def test_the_package_is_typed() -> None:
    assert (Path(antiphon.__file__).parent / "py.typed").is_file()
