"""One engine of the hearing stage for all tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine_pool import EnginePool

_pool = EnginePool(Path(__file__).parent)


@pytest.fixture(scope="session")
def cramped() -> Any:
    """The stage with blocks for two sounds at a time, and for no second block of their text."""
    from hearing_stage import SMALL_BLOCK, WINDOW_BLOCKS, block_bytes, spec

    return _pool.stage(
        spec(
            "cramped",
            block_size=SMALL_BLOCK,
            kv_cache_memory_bytes=(2 * WINDOW_BLOCKS + 1) * block_bytes(),
        )
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _pool.mark(items)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    _pool.after(nextitem)
