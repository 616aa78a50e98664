"""The codec decoder: alone, in a batch, in vLLM; and what the conversion makes of the stored
weights.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from voice_codec import plain_wave, random_codes
from voice_engines import StockEngine

from antiphon.models.voice import weights
from antiphon.models.voice.vocabulary import SAMPLES_PER_CODE

BATCH_TOLERANCE = 1e-6  # of full scale; on the CPUs tried the difference is exactly 0


@pytest.mark.parametrize("length", [1, 2, 3, 40])
def test_a_code_is_600_samples(length: int) -> None:
    """Also for the shortest inputs; float32, finite."""
    wave = plain_wave(random_codes(length))
    assert wave.shape == (length * SAMPLES_PER_CODE,)
    assert wave.dtype == torch.float32
    assert wave.isfinite().all()


def test_same_codes_same_wave() -> None:
    """The noise comes from the seed, so a repeated call is bit-identical."""
    assert torch.equal(plain_wave(random_codes(30)), plain_wave(random_codes(30)))


def test_seed_changes_the_noise() -> None:
    """Only the noise: with another seed the wave differs."""
    assert not torch.equal(plain_wave(random_codes(30)), plain_wave(random_codes(30), seed=1))


def test_vllm_gives_the_same_wave_exactly(code2wav: StockEngine) -> None:
    """One request in the engine against the plain module: bit for bit."""
    (result,) = code2wav.run([random_codes(57)])
    assert result.finish == "stop"
    assert result.tensor is not None
    assert torch.equal(result.tensor, plain_wave(random_codes(57)))


def test_batch_mates_of_other_lengths_change_nothing(code2wav: StockEngine) -> None:
    """Requests of different lengths in one step: bit for bit as alone."""
    inputs = [random_codes(20, 1), random_codes(33, 2), random_codes(7, 3)]
    for ids, result in zip(inputs, code2wav.run(inputs), strict=True):
        assert result.tensor is not None
        assert torch.equal(result.tensor, plain_wave(ids))


def test_batch_of_equal_lengths_is_the_same_wave(code2wav: StockEngine) -> None:
    """Equal lengths share one forward pass; matrix products of another shape may round
    differently.
    """
    inputs = [random_codes(24, seed) for seed in range(5)]
    for ids, result in zip(inputs, code2wav.run(inputs), strict=True):
        assert result.tensor is not None
        assert (result.tensor - plain_wave(ids)).abs().max() <= BATCH_TOLERANCE


def test_checkpoint_carries_licence_and_notice() -> None:
    """hibari's weights travel with its licence and notice."""
    folder = weights.code2wav_checkpoint()
    assert "Apache License" in (folder / "LICENSE.hibari-tts").read_text()
    assert "hibari" in (folder / "NOTICE.hibari-tts").read_text()
    assert Path(folder, "NOTICE").exists()
