"""Sounds cut into windows that Whisper takes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.models.voice.limits import WINDOW_S
from antiphon.models.voice.listening import windows
from antiphon.pipeline.audio import MIN_SECONDS, AudioClip

RATE = 4000


def noise(seconds: float, seed: int = 0, rate: int = RATE) -> np.ndarray:
    samples = np.random.default_rng(seed).integers(-3000, 3000, round(seconds * rate))
    return samples.astype(np.int16)


def seconds(clips: list[AudioClip]) -> list[float]:
    return [clip.seconds for clip in clips]


@pytest.mark.parametrize("length", [0.1, 1.0, 29.99, 30.0])
def test_what_fits_is_one_window(length: float) -> None:
    clip = AudioClip.from_array(noise(length), RATE)
    assert windows(clip) == [clip]


def test_a_long_sound_is_cut_in_its_pause() -> None:
    samples = noise(50)
    samples[27 * RATE : 27 * RATE + RATE // 2] = 0
    first, second = windows(AudioClip.from_array(samples, RATE))
    assert 27.0 < first.seconds < 27.5
    assert second.seconds == pytest.approx(50 - first.seconds)


def test_of_pauses_the_last_one_is_taken() -> None:
    samples = noise(50)
    for at in (12, 26, 28):
        samples[at * RATE : at * RATE + RATE // 2] = 0
    assert 28.0 < windows(AudioClip.from_array(samples, RATE))[0].seconds < 28.5


@settings(max_examples=50, deadline=None)
@given(
    st.floats(MIN_SECONDS, 100.0),
    st.integers(0, 5),
    st.sampled_from((4000, 4001, 5512)),
    st.booleans(),
)
def test_no_sample_is_lost_and_each_window_is_a_clip(
    length: float, seed: int, rate: int, floats: bool
) -> None:
    samples = noise(length + 1 / rate, seed, rate)
    given = samples.astype(np.float32) / 2**15 if floats else samples
    clip = AudioClip.from_array(given, rate)
    made = windows(clip)
    assert b"".join(window.samples for window in made) == clip.samples
    assert {(window.sample_rate, window.encoding) for window in made} == {(rate, clip.encoding)}
    assert max(seconds(made)) <= WINDOW_S
    assert all(length >= WINDOW_S - 5.2 for length in seconds(made)[:-1])


@pytest.mark.parametrize("value", [0, 1000])
def test_the_longest_sound_has_few_windows(value: int) -> None:
    """Silence, and a sound that is the same everywhere."""
    clip = AudioClip.from_array(np.full(600 * RATE, value, np.int16), RATE)
    assert 20 <= len(windows(clip)) <= 24
