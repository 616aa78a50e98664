"""The codec decoder: alone, in a batch, in vLLM; and what the conversion makes of the stored
weights.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from voice_engines import StockEngine

from antiphon.models.voice import weights
from antiphon.models.voice.code2wav import sizes_of
from antiphon.models.voice.code2wav_config import Code2WavConfig
from antiphon.models.voice.codec import CodecDecoder, synthesise
from antiphon.models.voice.vocabulary import NUM_CODES, SAMPLES_PER_CODE

BATCH_TOLERANCE = 1e-6  # of full scale; on the CPUs tried the difference is exactly 0


@pytest.fixture(scope="module")
def decoder() -> CodecDecoder:
    """The decoder as plain torch."""
    folder = weights.code2wav_checkpoint()
    config = json.loads((folder / "config.json").read_text())
    decoder = CodecDecoder(sizes_of(Code2WavConfig(**config))).eval()
    stored = load_file(folder / "model.safetensors")
    decoder.load_state_dict({name.removeprefix("decoder."): t for name, t in stored.items()})
    return decoder


def codes(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(NUM_CODES, (length,), generator=generator).tolist()


def plain_wave(decoder: CodecDecoder, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        spectrum, pitch = decoder(torch.tensor([ids]))
    return torch.from_numpy(synthesise(spectrum[0].numpy(), pitch[0].numpy(), 0))


@pytest.mark.parametrize("length", [1, 2, 3, 40])
def test_a_code_is_600_samples(decoder: CodecDecoder, length: int) -> None:
    """Also for the shortest inputs; float32, finite."""
    wave = plain_wave(decoder, codes(length))
    assert wave.shape == (length * SAMPLES_PER_CODE,)
    assert wave.dtype == torch.float32
    assert wave.isfinite().all()


def test_same_codes_same_wave(decoder: CodecDecoder) -> None:
    """The noise comes from the seed, so a repeated call is bit-identical."""
    assert torch.equal(plain_wave(decoder, codes(30)), plain_wave(decoder, codes(30)))


def test_seed_changes_the_noise(decoder: CodecDecoder) -> None:
    """Only the noise: with another seed the wave differs."""
    with torch.inference_mode():
        spectrum, pitch = (x[0].numpy() for x in decoder(torch.tensor([codes(30)])))
    assert not np.array_equal(synthesise(spectrum, pitch, 0), synthesise(spectrum, pitch, 1))


def test_vllm_gives_the_same_wave_exactly(code2wav: StockEngine, decoder: CodecDecoder) -> None:
    """One request in the engine against the plain module: bit for bit."""
    (result,) = code2wav.run([codes(57)])
    assert result.finish == "stop"
    assert result.tensor is not None
    assert torch.equal(result.tensor, plain_wave(decoder, codes(57)))


def test_batch_mates_of_other_lengths_change_nothing(
    code2wav: StockEngine, decoder: CodecDecoder
) -> None:
    """Requests of different lengths in one step: bit for bit as alone."""
    inputs = [codes(20, 1), codes(33, 2), codes(7, 3)]
    for ids, result in zip(inputs, code2wav.run(inputs), strict=True):
        assert result.tensor is not None
        assert torch.equal(result.tensor, plain_wave(decoder, ids))


def test_batch_of_equal_lengths_is_the_same_wave(
    code2wav: StockEngine, decoder: CodecDecoder
) -> None:
    """Equal lengths share one forward pass; matrix products of another shape may round
    differently.
    """
    inputs = [codes(24, seed) for seed in range(5)]
    for ids, result in zip(inputs, code2wav.run(inputs), strict=True):
        assert result.tensor is not None
        assert (result.tensor - plain_wave(decoder, ids)).abs().max() <= BATCH_TOLERANCE


def test_checkpoint_carries_licence_and_notice() -> None:
    """hibari's weights travel with its licence and notice."""
    folder = weights.code2wav_checkpoint()
    assert "Apache License" in (folder / "LICENSE.hibari-tts").read_text()
    assert "hibari" in (folder / "NOTICE.hibari-tts").read_text()
    assert Path(folder, "NOTICE").exists()
