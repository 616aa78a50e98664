"""Tiny checkpoints, their oracle, and one pool of engines for all tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from engine_pool import EnginePool

if TYPE_CHECKING:
    from codec_lm_tiny import Oracle

_pool = EnginePool(Path(__file__).parent)


@pytest.fixture(scope="session")
def engines() -> EnginePool:
    return _pool


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders by what is in them: two language models and two codecs."""
    from codec_lm_tiny import BACKBONES, codec_model, lm_model

    root = tmp_path_factory.mktemp("codec-lm")
    found = {backbone: lm_model(root / backbone, backbone) for backbone in BACKBONES}
    return found | {codec: codec_model(root / codec, codec) for codec in ("xcodec2", "neucodec")}


@pytest.fixture(scope="session")
def oracles(checkpoints: dict[str, str]) -> dict[str, Oracle]:
    """transformers by backbone, with XCodec2."""
    from codec_lm_tiny import BACKBONES, Oracle

    return {name: Oracle.of(checkpoints[name], checkpoints["xcodec2"]) for name in BACKBONES}


@pytest.fixture(scope="session")
def roomy(engines: EnginePool, checkpoints: dict[str, str]) -> dict[str, Any]:
    """Language models by backbone, with prefix caching and plenty of blocks."""
    from codec_lm_stages import lm_spec

    return {
        name: engines.stage(lm_spec(f"roomy-{name}", checkpoints[name], enable_prefix_caching=True))
        for name in ("llama", "qwen2")
    }


@pytest.fixture(scope="session")
def cramped(engines: EnginePool, checkpoints: dict[str, str]) -> dict[str, Any]:
    """The same with chunked prefill, and so few blocks that a batch is preempted."""
    from codec_lm_stages import CRAMPED, lm_spec

    return {
        name: engines.stage(lm_spec(f"cramped-{name}", checkpoints[name], **CRAMPED))
        for name in ("llama", "qwen2")
    }


@pytest.fixture(scope="session")
def codec(engines: EnginePool, checkpoints: dict[str, str]) -> Any:
    """XCodec2, for at most 64 codes at once."""
    from codec_lm_stages import codec_spec

    return engines.stage(codec_spec("codec", checkpoints["xcodec2"]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _pool.mark(items)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    _pool.after(nextitem)
