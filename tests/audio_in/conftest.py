"""A tiny checkpoint that hears, and one pool of engines for all tests of this folder."""

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
    """The folder of a tiny checkpoint with its processor."""
    from antiphon.models.qwen3_omni.tiny import write_tiny

    folder = tmp_path_factory.mktemp("hearing")
    write_tiny(folder)
    return str(folder)


@pytest.fixture(autouse=True)
def fresh_records() -> None:
    """What the adapters of earlier tests were given is forgotten."""
    import tiny_adapters

    tiny_adapters.forget()


@pytest.fixture(scope="session")
def roomy(engines: EnginePool, checkpoint: str) -> Any:
    """Plenty of blocks; prompts fit one step."""
    from audio_stages import spec

    return engines.stage(spec("roomy", checkpoint))


@pytest.fixture(scope="session")
def cramped(engines: EnginePool, checkpoint: str) -> Any:
    """Steps smaller than a clip's tokens, and so few blocks that a batch is preempted."""
    from audio_stages import BLOCK_BYTES, spec

    return engines.stage(
        spec(
            "cramped",
            checkpoint,
            max_model_len=192,
            max_num_batched_tokens=16,
            kv_cache_memory_bytes=8 * BLOCK_BYTES,
        )
    )


@pytest.fixture(scope="session")
def overlapped(engines: EnginePool, checkpoint: str) -> Any:
    """The roomy stage with asynchronous scheduling."""
    from audio_stages import spec

    return engines.stage(spec("overlapped", checkpoint, async_scheduling=True))


@pytest.fixture(scope="session")
def cached(engines: EnginePool, checkpoint: str) -> Any:
    """The roomy stage with prefix caching."""
    from audio_stages import spec

    return engines.stage(spec("cached", checkpoint, enable_prefix_caching=True))


@pytest.fixture(scope="session")
def deaf(engines: EnginePool, checkpoint: str) -> Any:
    """The same model without ears."""
    from audio_stages import spec

    return engines.stage(
        spec(
            "deaf",
            checkpoint,
            skip_tokenizer_init=True,
            limit_mm_per_prompt={"audio": 0, "image": 0, "video": 0},
        )
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _pool.mark(items)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    _pool.after(nextitem)
