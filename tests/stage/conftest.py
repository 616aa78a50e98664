"""One pool of engines for all tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine_pool import EnginePool

_pool = EnginePool(Path(__file__).parent)


def specs() -> Any:
    """Imported with the first engine: it imports vllm."""
    import tiny_specs

    return tiny_specs


@pytest.fixture(scope="session")
def engines() -> EnginePool:
    return _pool


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
    """A stage with a few edges and plenty of blocks; prompts fit one step."""
    return engines.stage(specs().few_edges("roomy", model_a))


@pytest.fixture(scope="session")
def cramped(engines: EnginePool, model_a: str) -> Any:
    """The same with chunked prefill, and so few blocks that a batch is preempted."""
    return engines.stage(specs().few_edges("cramped", model_a, **specs().CRAMPED))


@pytest.fixture(scope="session")
def overlapped(engines: EnginePool, model_a: str) -> Any:
    """The roomy stage with asynchronous scheduling."""
    return engines.stage(specs().few_edges("overlapped", model_a, async_scheduling=True))


@pytest.fixture(scope="session")
def cramped_overlapped(engines: EnginePool, model_a: str) -> Any:
    """Chunks, preemption and asynchronous scheduling together."""
    return engines.stage(
        specs().few_edges("cramped-overlapped", model_a, async_scheduling=True, **specs().CRAMPED)
    )


@pytest.fixture(scope="session")
def cached(engines: EnginePool, model_a: str) -> Any:
    """The roomy stage with prefix caching, on the connector that `listener` takes from."""
    return engines.stage(specs().few_edges("cached", model_a, enable_prefix_caching=True))


@pytest.fixture(scope="session")
def listener(engines: EnginePool, model_b: str) -> Any:
    """A consumer of both edges, with prefix caching; it feeds an edge of its own."""
    from antiphon.core.options import InEdge, OutEdge
    from tiny import tiny_spec

    spec = tiny_spec(
        "listener",
        model_b,
        "stage_tests",
        inputs=(InEdge("rows", "tiny_adapters:RowsIn"), InEdge("ids", "tiny_adapters:TokensIn")),
        outputs=(
            OutEdge("more", "tiny_adapters:RowsOut"),
            OutEdge("said", "tiny_adapters:TokensOut"),
        ),
        enable_prefix_caching=True,
        enable_prompt_embeds=True,
        max_num_batched_tokens=96,
    )
    return engines.stage(spec)


@pytest.fixture(scope="session")
def model_special(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint of the out-of-tree model with side outputs, which can be made to fall over."""
    import tiny_stage_model
    from tiny import tiny_model

    tiny_stage_model.register()
    folder = tmp_path_factory.mktemp("special")
    return tiny_model(folder, seed=1, architectures=[tiny_stage_model.ARCH])


@pytest.fixture(scope="session")
def special(engines: EnginePool, model_special: str) -> Any:
    """A stage of the special model with many edges and two places."""
    return engines.stage(specs().special_spec("special", model_special))


@pytest.fixture(scope="session")
def special_overlapped(engines: EnginePool, model_special: str) -> Any:
    """The same with asynchronous scheduling."""
    return engines.stage(
        specs().special_spec("special-overlapped", model_special, async_scheduling=True)
    )


@pytest.fixture(scope="session")
def model_gpt2(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that gives no hidden states of its layers; it has no weights."""
    from transformers import GPT2Config

    folder = tmp_path_factory.mktemp("gpt2")
    config = GPT2Config(vocab_size=64, n_positions=256, n_embd=64, n_layer=1, n_head=2)
    config.architectures = ["GPT2LMHeadModel"]
    config.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def layered(engines: EnginePool, model_a: str) -> Any:
    """A stage whose edges want hidden states after layers."""
    return engines.stage(specs().layered_spec("layered", model_a))


@pytest.fixture(scope="session")
def layered_cramped(engines: EnginePool, model_a: str) -> Any:
    """The same with chunks, preemption and asynchronous scheduling."""
    return engines.stage(
        specs().layered_spec("layered-cramped", model_a, async_scheduling=True, **specs().CRAMPED)
    )


@pytest.fixture(scope="session")
def model_talker(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint of the tiny talker."""
    import tiny_talker
    from tiny import tiny_model

    tiny_talker.register()
    return tiny_model(tmp_path_factory.mktemp("talker"), seed=1, architectures=[tiny_talker.ARCH])


@pytest.fixture(scope="session")
def talker_roomy(engines: EnginePool, model_talker: str) -> Any:
    """A talker with plenty of blocks; prompts fit one step."""
    return engines.stage(specs().talker_spec("roomy", model_talker))


@pytest.fixture(scope="session")
def talker_cramped(engines: EnginePool, model_talker: str) -> Any:
    """The same with chunked prefill and preemption."""
    return engines.stage(specs().talker_spec("cramped", model_talker, **specs().CRAMPED))


@pytest.fixture(scope="session")
def talker_overlapped(engines: EnginePool, model_talker: str) -> Any:
    """The roomy talker with asynchronous scheduling."""
    return engines.stage(specs().talker_spec("overlapped", model_talker, async_scheduling=True))


@pytest.fixture(scope="session")
def talker_cramped_overlapped(engines: EnginePool, model_talker: str) -> Any:
    """Chunks, preemption and asynchronous scheduling together."""
    return engines.stage(
        specs().talker_spec(
            "cramped-overlapped", model_talker, async_scheduling=True, **specs().CRAMPED
        )
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _pool.mark(items)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    _pool.after(nextitem)
