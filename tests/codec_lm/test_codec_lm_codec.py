"""The codec's module as the stage loads it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel
from vllm.engine.arg_utils import EngineArgs

from antiphon.errors import ModelUnavailableError
from antiphon.models.codec_lm.codec import Codec, decoder_of
from antiphon.models.codec_lm.configs import codec_config
from antiphon.models.codec_lm.register import CODEC_ARCH


@pytest.fixture
def loaded(checkpoints: dict[str, str]) -> Any:
    """XCodec2 without weights, and those of its checkpoint by name."""
    from codec_lm_stages import codec_spec

    folder = checkpoints["xcodec2"]
    args = dict(codec_spec("codec", folder).engine_args)
    own = ("scheduler_cls", "worker_cls")
    config = EngineArgs(model=folder, **{k: v for k, v in args.items() if k not in own})
    whole = AutoModel.from_pretrained(folder, dtype=torch.float32)
    return Codec(vllm_config=config.create_engine_config()), whole


@pytest.mark.parametrize("name", ["xcodec2", "neucodec"])
def test_the_config_names_our_model(checkpoints: dict[str, str], name: str) -> None:
    """The checkpoint's own stays as it is."""
    config = AutoConfig.from_pretrained(checkpoints[name])
    made = codec_config(config)
    assert (made.architectures, made.vocab_size) == ([CODEC_ARCH], 256)
    assert made.hop_length == config.hop_length
    assert config.architectures != [CODEC_ARCH]


@pytest.mark.parametrize("name", ["xcodec2", "neucodec"])
def test_encoders_are_left_out(checkpoints: dict[str, str], name: str) -> None:
    config = AutoConfig.from_pretrained(checkpoints[name])
    codec = decoder_of(config, torch.float32)
    assert {child for child, _ in codec.named_children()} == {"quantizer", "acoustic_decoder"}
    assert config.semantic_model_config.num_hidden_layers == 1


def test_loading_takes_what_decodes(loaded: Any) -> None:
    codec, whole = loaded
    weights = whole.state_dict()
    wanted = {name for name in weights if not codec.is_unused_checkpoint_weight(name)}
    assert wanted < weights.keys()
    with torch.no_grad():
        given = codec.load_weights(weights.items())
        ids = torch.arange(7)[None, None]
        assert given == {f"codec.{name}" for name in wanted}
        assert torch.equal(
            codec.codec.decode(audio_codes=ids).audio_values,
            whole.eval().decode(audio_codes=ids).audio_values,
        )


def test_a_checkpoint_that_lacks_a_weight(loaded: Any) -> None:
    codec, whole = loaded
    weights = whole.state_dict()
    del weights["acoustic_decoder.norm.bias"]
    with torch.no_grad(), pytest.raises(ModelUnavailableError, match=r"1 weights.*norm\.bias"):
        codec.load_weights(weights.items())
