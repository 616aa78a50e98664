"""Weights that are read again, and checkpoints that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import ModelUnavailableError
from codec_lm_stages import codec_spec, lm_spec
from loaded_weights import assert_reloads, damaged
from tiny import Driven


def test_the_codecs_weights_come_back(codec: Any) -> None:
    assert_reloads(codec)


@pytest.mark.usefixtures("engines")
@pytest.mark.parametrize("backbone", ["llama", "qwen2"])
@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("model.layers.1.self_attn.k_proj.weight", r"layers\.1\.self_attn\.qkv_proj"),
        ("lm_head.weight", r"lm_head\.weight"),
    ],
)
def test_a_missing_weight_of_the_language_model_is_named(
    checkpoints: dict[str, str], tmp_path: Path, backbone: str, missing: str, named: str
) -> None:
    whole = checkpoints[backbone]
    folder = damaged(whole, tmp_path / "copy", lambda weights: weights.pop(missing))
    with pytest.raises(ModelUnavailableError, match=named):
        Driven(lm_spec("incomplete", folder))


@pytest.mark.usefixtures("engines")
def test_a_weight_of_another_shape_is_named(checkpoints: dict[str, str], tmp_path: Path) -> None:
    """One number would be copied to all of them."""
    name = "acoustic_decoder.norm.bias"
    whole = checkpoints["xcodec2"]
    folder = damaged(whole, tmp_path / "copy", lambda w: w.update({name: w[name][:1]}))
    with pytest.raises(ModelUnavailableError, match=rf"{name} has shape \[1\]"):
        Driven(codec_spec("misshapen", folder))
