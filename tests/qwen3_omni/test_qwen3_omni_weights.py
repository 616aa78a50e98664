"""Weights that are read again, and checkpoints that do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import ModelUnavailableError
from engine_pool import EnginePool
from loaded_weights import assert_reloads, damaged
from qwen3_omni_stages import code2wav_spec, talker_spec, thinker_spec
from tiny import Driven

LAYER = "thinker.model.layers.1"


@pytest.fixture(scope="module")
def talker(engines: EnginePool, checkpoint: str) -> Any:
    return engines.stage(talker_spec("reloaded-talker", checkpoint))


@pytest.fixture(scope="module")
def code2wav(engines: EnginePool, checkpoint: str) -> Any:
    return engines.stage(code2wav_spec("reloaded-code2wav", checkpoint))


def test_the_talkers_weights_come_back(talker: Any) -> None:
    assert_reloads(talker, packed=".routed_experts.")


def test_the_vocoders_weights_come_back(code2wav: Any) -> None:
    assert_reloads(code2wav)


@pytest.mark.usefixtures("engines")
@pytest.mark.parametrize(
    ("missing", "named"),
    [
        (f"{LAYER}.self_attn.k_proj.weight", r"layers\.1\.self_attn\.qkv_proj"),
        (f"{LAYER}.mlp.experts.1.up_proj.weight", r"layers\.1\.mlp\.experts.*w13_weight"),
        ("thinker.lm_head.weight", r"lm_head\.weight"),
    ],
)
def test_a_missing_weight_of_the_thinker_is_named(
    checkpoint: str, tmp_path: Path, missing: str, named: str
) -> None:
    folder = damaged(checkpoint, tmp_path / "copy", lambda weights: weights.pop(missing))
    with pytest.raises(ModelUnavailableError, match=named):
        Driven(thinker_spec("incomplete", folder))


@pytest.mark.usefixtures("engines")
def test_a_weight_of_another_shape_is_named(checkpoint: str, tmp_path: Path) -> None:
    name = "code2wav.pre_transformer.layers.0.self_attn.q_proj.weight"
    folder = damaged(checkpoint, tmp_path / "copy", lambda w: w.update({name: w[name][1:]}))
    with pytest.raises(ModelUnavailableError, match=f"weight {name} does not fit"):
        Driven(code2wav_spec("misshapen", folder))


@pytest.mark.usefixtures("engines")
def test_ids_for_all_codes_are_needed(checkpoint: str, tmp_path: Path) -> None:
    folder = Path(damaged(checkpoint, tmp_path / "copy", lambda weights: None))
    config = json.loads((folder / "config.json").read_text())
    text = config["talker_config"]["text_config"]
    text["vocab_size"] -= 1
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelUnavailableError, match="codes of its codebook"):
        Driven(talker_spec("small", str(folder)))
