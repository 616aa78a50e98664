"""A checkpoint that lacks a part is an error of the start, which names it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from antiphon.errors import ModelUnavailableError
from engine_pool import EnginePool
from tiny import tiny_spec

PARTS = {
    "a stacked projection's part": ("model.layers.1.self_attn.k_proj.weight", "qkv_proj"),
    "a projection": ("model.layers.0.mlp.down_proj.weight", "down_proj"),
    "the head": ("lm_head.weight", "lm_head"),
    "the embeddings": ("model.embed_tokens.weight", "embed_tokens"),
    "a norm": ("model.layers.1.input_layernorm.weight", "input_layernorm"),
}


@pytest.mark.parametrize(("absent", "named"), PARTS.values(), ids=PARTS)
def test_it_names_what_is_missing(
    engines: EnginePool, model_a: str, tmp_path: Path, absent: str, named: str
) -> None:
    """vLLM's own loader takes most of these for loaded."""
    folder = tmp_path / "incomplete"
    shutil.copytree(model_a, folder)
    weights = load_file(folder / "model.safetensors")
    del weights[absent]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelUnavailableError, match=named):
        engines.stage(tiny_spec("incomplete", str(folder), "stage_incomplete"))


def test_a_model_without_a_head_of_its_own_is_complete(engines: EnginePool, tmp_path: Path) -> None:
    """Its head is its embeddings."""
    from tiny import tiny_model

    model = tiny_model(tmp_path, tie_word_embeddings=True)
    stage = engines.stage(tiny_spec("tied", model, "stage_tied"))
    stage.submit("r", [1, 2, 3])
    stage.run()
    assert len(stage.tokens("r")) == 8
