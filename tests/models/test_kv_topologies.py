"""The two pipelines that hand caches on, as far as their declarations say."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from antiphon.errors import InvalidRequestError
from antiphon.models.imagine.sizes import DrawSizes
from antiphon.models.imagine.topology import TOPOLOGY as IMAGINE
from antiphon.models.split.topology import TOPOLOGY as SPLIT
from antiphon.models.voice.topology import THINKER
from antiphon.models.voice.weights import thinker_checkpoint
from antiphon.pipeline.defaults import fill_defaults
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.topology import Stage


def names(stages: tuple[Stage, ...]) -> tuple[str, ...]:
    return tuple(stage.name for stage in stages)


def test_split_answers_in_text_by_way_of_both_stages() -> None:
    assert names(SPLIT.path_from("chat", None)) == ("prefill", "decode")
    assert SPLIT.outputs_from("chat") == ("text",)


def test_split_decodes_as_the_undivided_thinker() -> None:
    """Same checkpoint, engine and sampling: only then is a cache of one good for the other."""
    prefill, decode = SPLIT.stage("prefill"), SPLIT.stage("decode")
    assert prefill.model == decode.model == THINKER.model
    assert prefill.engine == decode.engine
    assert decode.engine == {**THINKER.engine, "enable_prefix_caching": True}
    assert decode.sampling == THINKER.sampling
    assert prefill.sampling["max_tokens"] == 1


def test_imagine_visits_the_drawing_stage_for_pictures_only() -> None:
    assert names(IMAGINE.path_from("chat", None)) == ("thinker", "draw")
    assert names(IMAGINE.path_from("chat", ("image",))) == ("thinker", "draw")
    assert names(IMAGINE.path_from("chat", ("text",))) == ("thinker",)
    with pytest.raises(InvalidRequestError, match="does not give 'audio'"):
        IMAGINE.path_from("chat", ("audio",))


@pytest.mark.parametrize("topology", [SPLIT, IMAGINE], ids=lambda topology: topology.name)
def test_the_defaults_can_be_filled_in(topology: object) -> None:
    filled = fill_defaults(topology, Deployment(pipeline=topology.name), device="cpu")
    assert filled.edges["cache"].on_failure == "fail"
    assert filled.edges["cache"].mode == "full"


def test_the_network_fits_the_thinker() -> None:
    """Its layers exist, with as many heads of keys as it expects, rotated as it rotates."""
    config = json.loads((thinker_checkpoint() / "config.json").read_text())
    sizes = DrawSizes()
    assert sizes.kv_heads == config["num_key_value_heads"]
    assert sizes.head_size == config["hidden_size"] // config["num_attention_heads"]
    assert sizes.rope_theta == config["rope_theta"]
    layers = {f"model.layers.{n}.self_attn.attn" for n in range(config["num_hidden_layers"])}
    assert set(sizes.kv_layers) <= layers


def test_declaring_them_imports_no_model_code() -> None:
    """Listing pipelines is quick."""
    program = (
        "import sys, antiphon.models.split.topology, antiphon.models.imagine.topology\n"
        "heavy = [name for name in ('vllm', 'torch', 'transformers') if name in sys.modules]\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
