"""A tiny checkpoint, and one pool of engines for all tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine_pool import EnginePool

_pool = EnginePool(Path(__file__).parent)


@pytest.fixture(scope="session")
def thinker(checkpoint: str) -> Any:
    """A thinker with room for everybody."""
    from qwen3_omni_stages import thinker_spec

    return _pool.stage(thinker_spec("thinker", checkpoint))


@pytest.fixture(scope="session")
def engines(thinker: Any) -> EnginePool:
    """The first engine of the process has experts: it makes the process groups of all, and vLLM
    makes one for experts only if it has any.
    """
    return _pool


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny checkpoint."""
    from antiphon.models.qwen3_omni.tiny import write_tiny

    folder = tmp_path_factory.mktemp("qwen3-omni")
    write_tiny(folder)
    return str(folder)


@pytest.fixture(scope="session")
def lines(engines: EnginePool, checkpoint: str, thinker: Any) -> Any:
    """Lines of stages by kind. Answers of transformers take longer than any test may: all are there
    before the first is compared, and so is the first talker.
    """
    from qwen3_omni_cases import CASES, Lines

    for case in CASES:
        case.oracle(checkpoint)
    found = Lines(engines, checkpoint, thinker)
    found.line("roomy")
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _pool.mark(items)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    _pool.after(nextitem)
