"""The vocoder as vLLM's model, without an engine around it."""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
# vLLM warns about its own dependencies while it is imported
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm.engine.arg_utils import EngineArgs
    from vllm.pooling_params import PoolingParams
    from vllm.v1.pool.metadata import PoolingMetadata, PoolingStates

    from antiphon.models.qwen2_5_omni.token2wav import Token2Wav

from antiphon.errors import ModelUnavailableError
from antiphon.models.qwen2_5_omni.configs import token2wav_config
from antiphon.models.qwen2_5_omni.register import register_models
from antiphon.models.qwen2_5_omni.topology import TOKEN2WAV
from qwen2_5_omni_oracle import sound

SAMPLES = 16  # of a code: 2 positions, each 4 x 2 samples


def weights(folder: str) -> dict[str, torch.Tensor]:
    return load_file(f"{folder}/model.safetensors")


def make(folder: str) -> Token2Wav:
    """As vLLM makes it, with the topology's own arguments; nothing is loaded."""
    register_models()
    args: dict[str, Any] = {**TOKEN2WAV.engine, "runner": "pooling", "skip_tokenizer_init": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = EngineArgs(
            model=folder, hf_overrides=token2wav_config, **args
        ).create_engine_config()
        return Token2Wav(vllm_config=config)


@pytest.fixture(scope="module")
def model(checkpoint: str) -> Token2Wav:
    made = make(checkpoint)
    made.load_weights(weights(checkpoint).items())
    return made


def step(model: Token2Wav, *requests: tuple[list[int], dict[str, Any]]) -> list[torch.Tensor]:
    """One forward pass with the arguments that the worker gives: (codes, extra) of requests."""
    lengths = torch.tensor([len(codes) for codes, _ in requests])
    metadata = PoolingMetadata(
        prompt_lens=lengths,
        prompt_token_ids=None,
        prompt_token_ids_cpu=None,
        pooling_params=[
            PoolingParams(task="plugin", extra_kwargs=extra or None) for _, extra in requests
        ],
        pooling_states=[PoolingStates() for _ in requests],
    )
    ids = torch.tensor([code for codes, _ in requests for code in codes])
    with torch.inference_mode():
        rows = model(input_ids=ids, positions=torch.arange(len(ids)))
        return model.pooler(rows, metadata)


def test_each_request_has_its_own_speaker_and_noise(model: Token2Wav, checkpoint: str) -> None:
    """Equal and other lengths in one step: the bits of each are transformers'."""
    asked = [
        ([5, 6, 7, 8], {"speaker": "Chelsie", "seed": 0}),
        ([5, 6, 7, 8], {"speaker": "Ethan", "seed": 0}),
        ([5, 6, 7, 8], {"speaker": "Chelsie", "seed": 1}),
        (list(range(40)), {"speaker": "Ethan", "seed": 2}),
    ]
    made = step(model, *asked)
    for (codes, extra), waveform in zip(asked, made, strict=True):
        assert torch.equal(waveform, sound(checkpoint, codes, **extra))
    assert len({tuple(waveform.tolist()) for waveform in made}) == len(asked)


def test_trial_runs_name_no_speaker_and_get_silence(model: Token2Wav) -> None:
    """Of the right length, without a diffusion over all tokens of a step."""
    made = step(model, ([0, 0, 0], {}), ([0], {}))
    assert [waveform.tolist() for waveform in made] == [[0.0] * 3 * SAMPLES, [0.0] * SAMPLES]


def test_a_checkpoint_with_a_hole_is_refused(checkpoint: str) -> None:
    """The first weight that is missing is named."""
    whole = weights(checkpoint)
    name = "token2wav.code2wav_bigvgan_model.conv_pre.bias"
    del whole[name]
    with pytest.raises(ModelUnavailableError, match=rf"lacks 1 weights .* is {name}"):
        make(checkpoint).load_weights(whole.items())


def test_files_of_other_stages_are_not_read(checkpoint: str) -> None:
    read = {name for name in weights(checkpoint) if not Token2Wav.is_unused_checkpoint_weight(name)}
    assert read
    assert all(name.startswith(TOKEN2WAV.weights) for name in read)
