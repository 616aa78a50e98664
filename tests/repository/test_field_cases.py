"""Every case from the field is tested, or a note says why not."""

from __future__ import annotations

import pytest

from field_case_list import CASES, Case
from field_case_page import places, read, references, render
from source import ROOT


@pytest.fixture(scope="module")
def tests() -> dict[int, list[str]]:
    return places(read())


def test_the_page_is_up_to_date(tests: dict[int, list[str]]) -> None:
    written = (ROOT / "docs" / "field-cases.md").read_text(encoding="utf-8")
    assert written == render(CASES, tests), "run `make docs`"


def test_every_case_has_a_test_or_a_note(tests: dict[int, list[str]]) -> None:
    assert [c.name for c in CASES if c.number not in tests and not c.note] == []


def test_no_test_names_a_case_that_does_not_exist(tests: dict[int, list[str]]) -> None:
    known = {case.number for case in CASES}
    assert {number: tests[number] for number in tests if number not in known} == {}


def test_every_case_is_listed_once_in_order() -> None:
    numbers = [case.number for case in CASES]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("C58: the end comes once.", [58]),
        ("C1, C2. Whatever waits.", [1, 2]),
        ("Its consumers must hear of it. C60.", [60]),
        ("As elsewhere (C26), and at the end of a line C7\nthen more.", [26, 7]),
        ("C49: [A1 B1 C1] gives D1 | C2 D2 E2 | C3 D3.", [49]),
        ("ABC12: nothing, nor AC12.", []),
    ],
)
def test_a_number_is_told_from_other_names(text: str, numbers: list[int]) -> None:
    assert references(text) == numbers


def test_a_test_is_found_by_the_docstring_of_its_own() -> None:
    source = '"""C1."""\ndef test_a():\n    "C2: so."\n\ndef helper():\n    "C3."\n'
    assert places([("t.py", source)]) == {1: ["t.py"], 2: ["t.py::test_a"]}


def test_a_page_has_a_row_for_each_case() -> None:
    page = render((Case(1, "One"), Case(2, "Two", "No such thing.")), {1: ["t.py::test_a"]})
    assert page.splitlines()[-2:] == [
        "| C1 | One | `t.py::test_a` |",
        "| C2 | Two | No such thing. |",
    ]
