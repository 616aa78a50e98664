"""A stage that makes its configuration out of its checkpoint's."""

from __future__ import annotations

import pickle

import msgspec
import pytest

from antiphon.errors import DeploymentError, TopologyError
from antiphon.stage.engine import StageEngine
from engine_pool import EnginePool


def test_config_function_reaches_the_model(engines: EnginePool, model_a: str) -> None:
    from tiny import tiny_config, tiny_spec

    spec = tiny_spec("configured", model_a, "stage_tests")
    engine = StageEngine(msgspec.structs.replace(spec, hf_config="tiny_configs:shorter"))
    engines.keep(engine.shutdown)
    model = engine.config.model_config
    assert model.hf_config.max_position_embeddings == tiny_config().max_position_embeddings // 2
    assert pickle.loads(pickle.dumps(model.hf_overrides)) is model.hf_overrides  # noqa: S301


@pytest.mark.parametrize("target", ["tiny_configs:none", "no_such_module:shorter"])
def test_config_function_that_is_not_there(model_a: str, target: str) -> None:
    from tiny import tiny_spec

    spec = tiny_spec("configured", model_a, "stage_tests")
    with pytest.raises(TopologyError, match=f"stage configured is '{target}', which cannot"):
        StageEngine(msgspec.structs.replace(spec, hf_config=target))


def test_a_length_that_the_checkpoint_does_not_have(model_a: str) -> None:
    """Upstream's words for it are of environment variables."""
    from tiny import tiny_config, tiny_spec

    most = tiny_config().max_position_embeddings
    spec = tiny_spec("long", model_a, "stage_tests", max_model_len=most + 1)
    with pytest.raises(
        DeploymentError, match=rf"stages\.long\.max_model_len .*takes {most} tokens"
    ):
        StageEngine(spec)


def test_other_arguments_that_upstream_refuses_are_its_own_words(model_a: str) -> None:
    from tiny import tiny_spec

    with pytest.raises(ValueError, match="dtype"):
        StageEngine(tiny_spec("odd", model_a, "stage_tests", dtype="float12", max_model_len=64))
