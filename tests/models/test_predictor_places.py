"""Where a code predictor puts its weights, and where vLLM's loader would put them later."""

from __future__ import annotations

import pytest
import torch

from antiphon.errors import ModelUnavailableError
from antiphon.models.code_predictor import CodePredictor, PredictorSizes

SIZES = PredictorSizes(
    groups=3,
    codebook=5,
    width=4,
    hidden=4,
    inner=6,
    layers=2,
    heads=2,
    kv_heads=1,
    head_dim=2,
    eps=1e-6,
    rope_theta=1e4,
)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("lm_head.2.weight", (5, 4)),
        ("lm_head.x.weight", (5, 4)),
        ("model.codec_embedding.2.weight", (5, 4)),
        ("model.layers.2.input_layernorm.weight", (4,)),
        ("model.layers.-1.input_layernorm.weight", (4,)),
        ("small_to_mtp_projection.weight", (4, 4)),
    ],
)
def test_a_weight_without_a_place_is_named(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelUnavailableError, match=f"no place for the weight {name}"):
        CodePredictor(SIZES).load_weights([(name, torch.zeros(shape))])


def test_a_part_goes_through_the_parameters_loader() -> None:
    """A parameter without memory keeps what it is given, to take it when it has some."""
    predictor, kept = CodePredictor(SIZES).to("meta"), []
    predictor.qkv.weight_loader = lambda *given: kept.append(given)  # type: ignore[assignment]
    keys = torch.ones(2, 4)
    assert predictor.load_weights([("model.layers.1.self_attn.k_proj.weight", keys)]) == {"qkv"}
    assert kept == [(predictor.qkv, keys, (1, slice(4, 6)))]
