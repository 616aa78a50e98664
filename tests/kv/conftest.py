"""One pool of engines for all tests of this folder: all of them have vLLM's KV connector, of which
a process has one."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_pool import EnginePool

_pool = EnginePool(Path(__file__).parent)


@pytest.fixture(scope="session")
def engines() -> EnginePool:
    return _pool


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny checkpoint, for both ends of an edge."""
    from tiny import tiny_model

    return tiny_model(tmp_path_factory.mktemp("kv-model"), seed=1)


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One of the same shape with other weights."""
    from tiny import tiny_model

    return tiny_model(tmp_path_factory.mktemp("kv-other"), seed=2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _pool.mark(items)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    _pool.after(nextitem)
