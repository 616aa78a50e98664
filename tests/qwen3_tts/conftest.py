"""One pool of engines for all tests of this folder, on the fixtures' checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine_pool import EnginePool

_pool = EnginePool(Path(__file__).parent)


@pytest.fixture(scope="session")
def engines() -> EnginePool:
    return _pool


@pytest.fixture(autouse=True)
def fresh_records() -> None:
    """What the adapters of earlier tests were given is forgotten."""
    import tiny_adapters

    tiny_adapters.forget()


@pytest.fixture(scope="session")
def talker(engines: EnginePool) -> Any:
    """A talker with plenty of blocks; prompts fit one step."""
    from qwen3_tts_stages import talker_spec

    return engines.stage(talker_spec("talker"))


@pytest.fixture(scope="session")
def cramped_talker(engines: EnginePool) -> Any:
    """The same with chunked prefill, and so few blocks that a batch is preempted."""
    from qwen3_tts_stages import CRAMPED, talker_spec

    return engines.stage(talker_spec("cramped", **CRAMPED))


@pytest.fixture(scope="session")
def overlapped_talker(engines: EnginePool) -> Any:
    """Chunks, preemption and asynchronous scheduling together."""
    from qwen3_tts_stages import CRAMPED, talker_spec

    return engines.stage(talker_spec("overlapped", async_scheduling=True, **CRAMPED))


@pytest.fixture(scope="session")
def cached_talker(engines: EnginePool) -> Any:
    """The cramped one with prefix caching, which the topology turns off."""
    from qwen3_tts_stages import CRAMPED, talker_spec

    return engines.stage(talker_spec("cached", enable_prefix_caching=True, **CRAMPED))


@pytest.fixture(scope="session")
def code2wav(engines: EnginePool) -> Any:
    from qwen3_tts_stages import code2wav_spec

    return engines.stage(code2wav_spec("code2wav"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _pool.mark(items)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    _pool.after(nextitem)
