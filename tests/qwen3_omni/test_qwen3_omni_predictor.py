"""The code predictor against transformers' module, on its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from antiphon.errors import ModelUnavailableError
from antiphon.models.code_predictor import CodePredictor, PredictorSizes
from antiphon.models.qwen3_omni.tiny import tiny_config, tiny_model
from antiphon.worker.whole_weights import every_weight


@pytest.fixture(scope="module")
def talker() -> Any:
    return tiny_model().eval().talker


def loaded(talker: Any) -> CodePredictor:
    sizes = PredictorSizes.of(
        talker.config.code_predictor_config, talker.config.text_config.hidden_size
    )
    predictor = CodePredictor(sizes)
    with every_weight(predictor):
        predictor.load_weights(talker.code_predictor.state_dict().items())
    return predictor


def most_likely(code: int, logits: torch.Tensor) -> torch.Tensor:
    return logits.argmax(-1)


def inputs(talker: Any, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    width = talker.config.text_config.hidden_size
    hidden = torch.randn(count, width, generator=generator)
    first = torch.randint(0, talker.config.code_predictor_config.vocab_size, (count,))
    return hidden, first, talker.get_input_embeddings()(first)


@torch.inference_mode()
def test_codes_are_those_of_transformers(talker: Any) -> None:
    hidden, _, embeds = inputs(talker, 7)
    codes = loaded(talker)(hidden, embeds, most_likely)
    expected = talker.code_predictor.generate(
        inputs_embeds=torch.stack([hidden, embeds], dim=1),
        max_new_tokens=talker.config.num_code_groups - 1,
        do_sample=False,
    )
    assert torch.equal(codes, expected)
    assert all(len(column.unique()) > 1 for column in codes.T)  # they are worth comparing


@torch.inference_mode()
def test_codes_depend_on_each_input(talker: Any) -> None:
    predictor = loaded(talker)
    hidden, _, embeds = inputs(talker, 7)
    codes = predictor(hidden, embeds, most_likely)
    assert not torch.equal(predictor(hidden.roll(1, 0), embeds, most_likely), codes)
    assert not torch.equal(predictor(hidden, embeds.roll(1, 0), most_likely), codes)


@torch.inference_mode()
def test_a_request_has_the_same_codes_alone(talker: Any) -> None:
    predictor = loaded(talker)
    hidden, _, embeds = inputs(talker, 7)
    codes = predictor(hidden, embeds, most_likely)
    for row in range(7):
        own = slice(row, row + 1)
        assert torch.equal(predictor(hidden[own], embeds[own], most_likely), codes[own])


@torch.inference_mode()
def test_the_draw_chooses_and_is_fed_back(talker: Any) -> None:
    predictor = loaded(talker)
    hidden, _, embeds = inputs(talker, 3)
    asked: list[int] = []

    def least_likely_first(code: int, logits: torch.Tensor) -> torch.Tensor:
        asked.append(code)
        return logits.argmin(-1) if code == 1 else logits.argmax(-1)

    other = predictor(hidden, embeds, least_likely_first)
    assert asked == list(range(1, predictor.sizes.groups))
    assert not torch.equal(other[:, 1:], predictor(hidden, embeds, most_likely)[:, 1:])


@torch.inference_mode()
def test_embeddings_are_those_of_each_codes_own_table(talker: Any) -> None:
    predictor = loaded(talker)
    codes = torch.randint(0, predictor.sizes.codebook, (6, predictor.sizes.groups - 1))
    tables = talker.code_predictor.get_input_embeddings()
    expected = torch.stack([table(codes[:, i]) for i, table in enumerate(tables)], dim=1)
    assert torch.equal(predictor.embed(codes), expected)


def test_a_narrower_predictor_projects_its_inputs(talker: Any) -> None:
    """As in Qwen3-TTS: embeddings and hidden states of the talker's width, one projection."""
    config = talker.config.code_predictor_config
    sizes = PredictorSizes.of(config, width=48)
    narrow, same = CodePredictor(sizes), loaded(talker)
    generator = torch.Generator().manual_seed(5)
    projection = torch.randn(sizes.hidden, 48, generator=generator) / 7
    bias = torch.randn(sizes.hidden, generator=generator)
    tables = torch.randn(sizes.groups - 1, sizes.codebook, 48, generator=generator)
    weights = dict(talker.code_predictor.state_dict())
    weights |= {f"model.codec_embedding.{i}.weight": table for i, table in enumerate(tables)}
    weights |= {"small_to_mtp_projection.weight": projection, "small_to_mtp_projection.bias": bias}
    with every_weight(narrow):
        narrow.load_weights(weights.items())
    with torch.inference_mode():  # the same, with what is projected as inputs
        same.tables.copy_(tables @ projection.T + bias)
        hidden, first = torch.randn(2, 5, 48, generator=generator)
        expected = same(hidden @ projection.T + bias, first @ projection.T + bias, most_likely)
        assert torch.equal(narrow(hidden, first, most_likely), expected)
        assert narrow.embed(expected).shape == (5, sizes.groups - 1, 48)


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("model.layers.1.self_attn.k_proj.weight", "qkv"),
        ("model.layers.2.mlp.up_proj.weight", "gate_up"),
        ("lm_head.3.weight", "heads"),
        ("model.codec_embedding.0.weight", "tables"),
    ],
)
def test_a_missing_weight_is_named(talker: Any, missing: str, named: str) -> None:
    predictor = CodePredictor(PredictorSizes.of(talker.config.code_predictor_config, 64))
    weights = dict(talker.code_predictor.state_dict())
    del weights[missing]
    with (
        pytest.raises(ModelUnavailableError, match=rf"all of {named};"),
        every_weight(predictor),
    ):
        predictor.load_weights(weights.items())


def test_weights_that_do_not_fit_are_named(talker: Any) -> None:
    predictor = CodePredictor(PredictorSizes.of(talker.config.code_predictor_config, 64))
    with pytest.raises(ModelUnavailableError, match=r"norm\.weight has shape \[3\]"):
        predictor.load_weights([("model.norm.weight", torch.zeros(3))])
    with pytest.raises(ModelUnavailableError, match=r"no place for the weight model\.bias"):
        predictor.load_weights([("model.bias", torch.zeros(3))])


@pytest.mark.parametrize(
    ("field", "value"),
    [("hidden_act", "gelu"), ("attention_bias", True), ("num_code_groups", 1)],
)
def test_another_kind_of_decoder_is_refused(field: str, value: object) -> None:
    config = tiny_config().talker_config.code_predictor_config
    setattr(config, field, value)
    with pytest.raises(ModelUnavailableError, match="supported"):
        PredictorSizes.of(config, 64)
