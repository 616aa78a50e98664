"""One pool of engines for all tests of this folder.

Engines of one process share vLLM's process groups: shutting one down breaks the others, so all are
shut down together after the folder's last test.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_FOLDER = Path(__file__).parent
# 7 blocks can be given out: 224 tokens for everybody.
CRAMPED: dict[str, Any] = {
    "max_model_len": 192,
    "max_num_batched_tokens": 48,
    "kv_cache_memory_bytes": 8 * 32768,
}
_closers: list[Callable[[], None]] = []


class EnginePool:
    """Builds engines and keeps them alive."""

    def stage(self, spec: Any) -> Any:
        from tiny import Driven

        driven = Driven(spec)
        _closers.append(driven.host.stop)
        return driven

    def keep(self, shutdown: Callable[[], None]) -> None:
        """Call `shutdown` with all others at the end."""
        _closers.append(shutdown)


@pytest.fixture(scope="session")
def engines() -> EnginePool:
    return EnginePool()


@pytest.fixture(scope="session")
def model_a(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny checkpoint."""
    from tiny import tiny_model

    return tiny_model(tmp_path_factory.mktemp("model-a"), seed=1)


@pytest.fixture(scope="session")
def model_b(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Another one of the same shape."""
    from tiny import tiny_model

    return tiny_model(tmp_path_factory.mktemp("model-b"), seed=2)


@pytest.fixture(autouse=True)
def fresh_records() -> None:
    """What the adapters of earlier tests were given is forgotten."""
    import tiny_adapters

    tiny_adapters.forget()


@pytest.fixture(scope="session")
def roomy(engines: EnginePool, model_a: str) -> Any:
    """A stage with two edges and plenty of blocks; prompts fit one step."""
    return engines.stage(two_edges("roomy", model_a))


@pytest.fixture(scope="session")
def cramped(engines: EnginePool, model_a: str) -> Any:
    """The same with chunked prefill, and so few blocks that a batch is preempted."""
    return engines.stage(two_edges("cramped", model_a, **CRAMPED))


@pytest.fixture(scope="session")
def overlapped(engines: EnginePool, model_a: str) -> Any:
    """The roomy stage with asynchronous scheduling."""
    return engines.stage(two_edges("overlapped", model_a, async_scheduling=True))


@pytest.fixture(scope="session")
def cramped_overlapped(engines: EnginePool, model_a: str) -> Any:
    """Chunks, preemption and asynchronous scheduling together."""
    return engines.stage(
        two_edges("cramped-overlapped", model_a, async_scheduling=True, **CRAMPED)
    )


def two_edges(name: str, model: str, **over: Any) -> Any:
    from tiny import tiny_spec

    from antiphon.core.options import OutEdge

    edges = (OutEdge("rows", "tiny_adapters:RowsOut"), OutEdge("ids", "tiny_adapters:TokensOut"))
    return tiny_spec(name, model, "stage_tests", outputs=edges, **over)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Upstream reads every attribute of torch.distributed when it builds its first engine.
    known = pytest.mark.filterwarnings(
        "ignore:`torch.distributed.reduce_op` is deprecated:FutureWarning"
    )
    for item in items:
        if _FOLDER in item.path.parents:
            item.add_marker(known)


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or _FOLDER not in nextitem.path.parents:
        gc.freeze()  # each shutdown collects garbage several times over all that was imported
        while _closers:
            _closers.pop()()
        gc.unfreeze()
