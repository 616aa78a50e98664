"""The vLLM that is installed has every name that the project relies on."""

from __future__ import annotations

import pytest

from antiphon.errors import SeamMovedError
from antiphon.upstream.check import CheckRow, Status, require_seams, run_check
from antiphon.upstream.contract import SYMBOLS
from antiphon.upstream.symbols import Symbol


@pytest.fixture(scope="module")
def rows() -> dict[str, CheckRow]:
    return {row.symbol: row for row in run_check()}


@pytest.mark.parametrize("symbol", SYMBOLS, ids=lambda s: s.qualname)
def test_name_is_as_expected(symbol: Symbol, rows: dict[str, CheckRow]) -> None:
    """C126: a name that upstream renames or a parameter that it adds fails here by name."""
    row = rows[f"{symbol.module}.{symbol.qualname}"]
    assert row.status is Status.OK, row.detail


def test_no_name_is_listed_twice() -> None:
    names = [(s.module, s.qualname) for s in SYMBOLS]
    assert len(names) == len(set(names))


def _symbol(qualname: str, kind: str, signature: tuple[str, ...] | None = None) -> Symbol:
    module = "vllm.v1.core.sched.scheduler"
    return Symbol(module, qualname, kind, signature, "seam", "reason", "fallback")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("symbol", "status"),
    [
        (_symbol("Scheduler.schedule", "method", ("throttle_prefills",)), Status.OK),
        (_symbol("Scheduler.schedule", "method", ()), Status.CHANGED),
        (_symbol("Scheduler.schedule", "class"), Status.MISSING),
        (_symbol("Scheduler.no_such_method", "method"), Status.MISSING),
        (_symbol("NoSuchClass.method", "method"), Status.MISSING),
        (_symbol("Scheduler.no_such_attribute", "attribute"), Status.MISSING),
        (_symbol("SchedulerOutput.no_such_field", "field"), Status.MISSING),
    ],
)
def test_check_tells_ok_from_missing_and_changed(symbol: Symbol, status: Status) -> None:
    assert run_check([symbol])[0].status is status


def test_a_hook_is_a_name_that_upstream_looks_for() -> None:
    loader = "vllm.model_executor.model_loader.default_loader"
    found = [
        run_check([Symbol(loader, f"DefaultModelLoader.{name}", "hook", None, "s", "r", "f")])[0]
        for name in ("is_unused_checkpoint_weight", "is_unused_checkpoint_wheat")
    ]
    assert [row.status for row in found] == [Status.OK, Status.MISSING]


def test_missing_module_is_a_row_not_an_exception() -> None:
    symbol = Symbol("vllm.no_such_module", "X", "class", None, "s", "r", "f")
    (row,) = run_check([symbol])
    assert row.status is Status.MISSING


def test_require_seams_names_what_moved_in_one_line() -> None:
    symbols = [_symbol("Scheduler.schedule", "method"), _symbol("Scheduler.gone", "method")]
    with pytest.raises(SeamMovedError, match=r"1 of 2 names .*Scheduler\.gone") as caught:
        require_seams(run_check(symbols))
    assert "\n" not in str(caught.value)
