"""Weights that are read again, and checkpoints that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import ModelUnavailableError
from loaded_weights import assert_reloads, damaged
from qwen2_5_omni_stages import thinker_spec, token2wav_spec
from tiny import Driven


def test_the_talkers_weights_come_back(roomy: tuple[Any, Any]) -> None:
    assert_reloads(roomy[1])


def test_the_vocoders_weights_come_back(vocoder: Any) -> None:
    assert_reloads(vocoder)


@pytest.mark.usefixtures("engines")
@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("thinker.model.layers.1.self_attn.k_proj.weight", r"layers\.1\.self_attn\.qkv_proj"),
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
    """One number would be copied to all of them."""
    name = "token2wav.code2wav_dit_model.time_embed.time_mlp.0.bias"
    folder = damaged(checkpoint, tmp_path / "copy", lambda w: w.update({name: w[name][:1]}))
    with pytest.raises(ModelUnavailableError, match=rf"{name} has shape \[1\]"):
        Driven(token2wav_spec("misshapen", folder))
