"""The fault matrix is whole: each row has its tests, each marked test its row."""

from __future__ import annotations

import ast
import io
from collections import defaultdict

import pytest

from antiphon.cli.main import main
from antiphon.testing.fault_docs import render
from antiphon.testing.fault_table import FAULTS, FAULTS_LIST, Target
from source import ROOT


def marked() -> dict[str, set[str]]:
    """By row: the tests that are marked with it, themselves or by one of their parameters."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for row in _rows(node):
                    found[row].add(f"{path.relative_to(ROOT)}::{node.name}")
    return dict(found)


def _rows(test: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    calls = (n for d in test.decorator_list for n in ast.walk(d) if isinstance(n, ast.Call))
    marks = [call for call in calls if ast.unparse(call.func) == "pytest.mark.fault"]
    return [ast.literal_eval(argument) for mark in marks for argument in mark.args]


def test_each_row_has_its_tests_and_each_test_its_row() -> None:
    assert marked() == {fault.id: set(fault.tests) for fault in FAULTS_LIST}


def test_no_row_is_there_twice_and_each_kind_has_some() -> None:
    assert len(FAULTS) == len(FAULTS_LIST)
    assert {fault.target for fault in FAULTS_LIST} == set(Target)


def test_who_fails_has_an_error_and_who_does_not_has_none() -> None:
    for fault in FAULTS_LIST:
        assert (fault.error is None) or fault.fails != "none", fault.id
        assert fault.checked, fault.id


def test_the_command_prints_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faults"]) == 0
    assert capsys.readouterr().out == render()


def test_the_command_prints_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faults", "stage-sigstop-loaded"]) == 0
    shown = capsys.readouterr().out
    assert "StageDiedError" in shown
    assert "3 s after supervision.silence_s" in shown
    assert "degraded, 200; then degraded, 503" in shown
    assert max(map(len, shown.splitlines())) <= 110


def test_the_command_knows_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faults", "stage-sigstop"]) == 2
    assert "stage-sigstop-idle" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    assert main(["faults"]) == 0
    shown = terminal.getvalue()
    assert [fault.id for fault in FAULTS_LIST if f"\n\n{fault.id}: " not in f"\n\n{shown}"] == []
    assert "|" not in shown
