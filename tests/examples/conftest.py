"""Examples run as their readers would run them; engines are those of one pool."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_pool import EnginePool

_pool = EnginePool(Path(__file__).parent)


@pytest.fixture(scope="session")
def engines() -> EnginePool:
    return _pool


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _pool.mark(items)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    _pool.after(nextitem)
