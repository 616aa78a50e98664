"""Tiny checkpoints, and one pool of engines for all tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine_pool import EnginePool

_pool = EnginePool(Path(__file__).parent)


@pytest.fixture(scope="session")
def engines() -> EnginePool:
    return _pool


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny checkpoint."""
    from antiphon.models.qwen2_5_omni.tiny import write_tiny

    folder = tmp_path_factory.mktemp("qwen2.5-omni")
    write_tiny(folder)
    return str(folder)


@pytest.fixture(scope="session")
def roomy(engines: EnginePool, checkpoint: str) -> tuple[Any, Any]:
    """Thinker, with prefix caching, and talker; plenty of blocks, prompts fit one step."""
    from qwen2_5_omni_stages import talker_spec, thinker_spec

    return (
        engines.stage(thinker_spec("thinker", checkpoint, enable_prefix_caching=True)),
        engines.stage(talker_spec("talker", checkpoint)),
    )


@pytest.fixture(scope="session")
def cramped(engines: EnginePool, checkpoint: str) -> tuple[Any, Any]:
    """The same with chunked prefill, and so few blocks that a batch is preempted."""
    from qwen2_5_omni_stages import (
        TALKER_BLOCK,
        THINKER_BLOCK,
        cramped,
        talker_spec,
        thinker_spec,
    )

    little, less = cramped(THINKER_BLOCK, 8), cramped(TALKER_BLOCK, 7)
    return (
        engines.stage(thinker_spec("cramped-thinker", checkpoint, **little)),
        engines.stage(talker_spec("cramped-talker", checkpoint, **less)),
    )


@pytest.fixture(scope="session")
def vocoder(engines: EnginePool, checkpoint: str) -> Any:
    from qwen2_5_omni_stages import token2wav_spec

    return engines.stage(token2wav_spec("token2wav", checkpoint))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _pool.mark(items)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    _pool.after(nextitem)
