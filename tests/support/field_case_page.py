"""Writes the page of field cases: `python tests/support/field_case_page.py docs/field-cases.md`."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from field_case_list import CASES, Case

TESTS = Path(__file__).parent.parent
_REFERENCE = re.compile(r"\bC(\d{1,3})(?=[:,.;)]|$)", re.MULTILINE)

_HEAD = """\
# Field cases

Generated from `tests/support/field_case_list.py` and the tests' docstrings by `make docs`; do not
edit.

What users of omni serving systems have run into elsewhere, and the tests that show that it does not
happen here. What is different here, or cannot be tested, is said first. A test belongs to a case if
its docstring names the case's number; a path alone means all of the file's tests.

| case | what it is about | what shows that it does not happen |
|---|---|---|
"""


def references(text: str) -> list[int]:
    """The numbers of the cases that a docstring names, in order."""
    return [int(number) for number in _REFERENCE.findall(text)]


def places(files: Sequence[tuple[str, str]]) -> dict[int, list[str]]:
    """Tests by the number of their case, of (path, source) of test modules."""
    found: dict[int, list[str]] = defaultdict(list)
    for path, source in files:
        tree = ast.parse(source, path)
        for name, text in _docstrings(tree):
            place = f"{path}::{name}" if name else path
            for number in dict.fromkeys(references(text)):
                found[number].append(place)
    return dict(found)


def _docstrings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Of the module, with an empty name, and of every test in it."""
    yield "", ast.get_docstring(tree) or ""
    for node in ast.walk(tree):
        named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if named and node.name.startswith("test_"):
            yield node.name, ast.get_docstring(node) or ""


def read() -> list[tuple[str, str]]:
    """Every test module of the repository."""
    return [
        (path.relative_to(TESTS.parent).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted(TESTS.rglob("test_*.py"))
    ]


def render(cases: Sequence[Case], tests: Mapping[int, Sequence[str]]) -> str:
    """The page as Markdown."""
    return _HEAD + "".join(_row(case, tests.get(case.number, ())) for case in cases)


def _row(case: Case, tests: Sequence[str]) -> str:
    lines = [case.note] if case.note else []
    where = "<br>".join([*lines, *(f"`{place}`" for place in tests)])
    return f"| {case.name} | {case.title} | {where} |\n"


def main(arguments: list[str]) -> int:
    """Write the page to the file named by the one argument."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python tests/support/field_case_page.py FILE\n")
        return 2
    Path(arguments[0]).write_text(render(CASES, places(read())), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
