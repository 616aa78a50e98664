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
    about,
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


def test_bfloat16_runs(engines: EnginePool, capsys: pytest.CaptureFixture[str]) -> None:
    """Finite, and as much of it; where it leaves float32 is told and not judged."""
    talker = engines.stage(talker_spec("brief", dtype="bfloat16"))
    speaking = Speaking(talker, engines.stage(code2wav_spec("sound", dtype="bfloat16")))
    names = ("pair-auto-streaming", "sentence-english-streaming", "written-told-whole")
    for name in names:
        speaking.say(name, name, edge=STREAM)
    speaking.run()
    for name in names:
        assert speaking.errors(name) == []
        assert 0 < len(speaking.frames(name)) <= about()["max_frames"]
        sound = speaking.sound(name)
        assert len(sound) == SAMPLES * len(speaking.spoken(name))
        assert sound.dtype == torch.float32
        assert sound.isfinite().all()
        same = [a == b for a, b in zip(speaking.frames(name), codes_of(name), strict=False)]
        first = same.index(False) if False in same else "none"
        with capsys.disabled():
            print(f" [{name}: first other frame {first} of {len(codes_of(name))}]")
    speaking.assert_empty()
