"""Checkpoints that are not complete, and other dtypes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from antiphon.errors import ModelUnavailableError
from engine_pool import EnginePool
from qwen3_tts_stages import (
    CHECKPOINT,
    SAMPLES,
    STREAM,
    Speaking,
    case,
    code2wav_spec,
    codes_of,
    talker_spec,
)
from tiny import Driven

Damaged = Callable[[str, str], str]


@pytest.fixture
def damaged(tmp_path: Path) -> Damaged:
    """The checkpoint without a weight of one of its files."""

    def make(file: str, name: str) -> str:
        folder = tmp_path / "checkpoint"
        shutil.copytree(CHECKPOINT, folder)
        weights = load_file(folder / file)
        del weights[name]
        save_file(weights, folder / file)
        return str(folder)

    return make


@pytest.mark.parametrize(
    ("weight", "named"),
    [
        ("talker.codec_head.weight", "lm_head.weight"),
        ("talker.model.text_embedding.weight", "text_embedding.weight"),
        ("talker.text_projection.linear_fc2.bias", "text_projection.linear_fc2.bias"),
        ("talker.model.layers.1.self_attn.k_proj.weight", "model.layers.1.self_attn.qkv_proj"),
        ("talker.code_predictor.lm_head.2.weight", "code_predictor.heads"),
        ("talker.code_predictor.small_to_mtp_projection.bias", "code_predictor.projection_bias"),
    ],
)
def test_a_missing_weight_of_the_talker_is_named(weight: str, named: str, damaged: Damaged) -> None:
    folder = damaged("model.safetensors", weight)
    with pytest.raises(ModelUnavailableError, match=named):
        Driven(talker_spec("damaged", folder))


@pytest.mark.parametrize(
    ("weight", "named"),
    [
        (
            "decoder.quantizer.rvq_rest.vq.layers.1._codebook.embedding_sum",
            "decoder.quantizer.rvq_rest.vq.layers.1._codebook.embedding_sum",
        ),
        ("decoder.decoder.2.block.1.conv.bias", "decoder.decoder.2.block.1.conv.bias"),
        ("decoder.pre_transformer.input_proj.weight", "decoder.pre_transformer.input_proj.weight"),
    ],
)
def test_a_missing_weight_of_the_codec_is_named(weight: str, named: str, damaged: Damaged) -> None:
    folder = damaged("speech_tokenizer/model.safetensors", weight)
    with pytest.raises(ModelUnavailableError, match=named):
        Driven(code2wav_spec("damaged", folder))


def test_bfloat16_runs(engines: EnginePool) -> None:
    """Other codes, and as many: nothing is bound to one dtype."""
    talker = engines.stage(talker_spec("brief", dtype="bfloat16"))
    speaking = Speaking(talker, engines.stage(code2wav_spec("sound", dtype="bfloat16")))
    name = "pair-auto-streaming"
    for uid in ("a", "b"):
        speaking.say(uid, name, edge=STREAM, ignore_eos=True)
    speaking.run()
    assert speaking.errors("a") == []
    assert speaking.frames("a") == speaking.frames("b")
    assert len(speaking.frames("a")) == case(name)["frames"]
    assert speaking.frames("a") != codes_of(name)
    sound = speaking.sound("a")
    assert len(sound) == SAMPLES * len(speaking.spoken("a"))
    assert sound.dtype == torch.float32
    assert 0.01 < float(sound.std()) < 1
    speaking.assert_empty()
