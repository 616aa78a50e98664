"""Clips: what WAV files and arrays become, and what is refused."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import InputTooLongError, InvalidRequestError
from antiphon.pipeline.audio import MAX_SECONDS, AudioClip, as_clips

RATE = 8000


def wav(width: int = 2, channels: int = 1, rate: int = RATE, samples: int = RATE) -> bytes:
    """A ramp from -1 to almost 1; the second channel is its negative."""
    ramp = np.linspace(-1, 1, samples, endpoint=False)
    frames = np.stack([ramp, -ramp], axis=1)[:, :channels]
    whole = np.clip(np.round(frames * 2 ** (8 * width - 1)), -(2.0**31), 2**31 - 1)
    limit = 2 ** (8 * width - 1)
    whole = np.clip(whole, -limit, limit - 1).astype("<i4")
    if width == 1:
        data = (whole + 128).astype(np.uint8).tobytes()
    else:
        data = whole.astype("<i4").view(np.uint8).reshape(-1, 4)[:, :width].tobytes()
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(channels)
        sound.setsampwidth(width)
        sound.setframerate(rate)
        sound.writeframes(data)
    return file.getvalue()


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_pcm_of_any_width(width: int) -> None:
    clip = AudioClip.from_wav(wav(width))
    ramp = np.linspace(-1, 1, RATE, endpoint=False)
    assert clip.sample_rate == RATE
    assert clip.seconds == 1.0
    assert clip.array().dtype == np.float32
    assert np.abs(clip.array() - ramp).max() <= 2.0 ** -(8 * width - 1) + 1e-7


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_channels_are_averaged(width: int) -> None:
    clip = AudioClip.from_wav(wav(width, channels=2))
    assert np.abs(clip.array()).max() <= 2.0 ** -(8 * width - 1)
    assert len(clip.array()) == RATE


def test_a_file_is_its_bytes(tmp_path: Path) -> None:
    file = tmp_path / "x.wav"
    file.write_bytes(wav())
    clip = AudioClip.from_wav(wav())
    assert as_clips(file) == as_clips(str(file)) == as_clips([clip]) == as_clips(clip) == [clip]
    assert as_clips((file, clip)) == [clip, clip]
    assert as_clips(()) == []


def test_a_file_whose_header_does_not_know_its_length() -> None:
    """As whoever writes into a pipe makes it."""
    made = bytearray(wav())
    at = made.index(b"data") + 4
    made[at : at + 4] = b"\xff\xff\xff\xff"
    made[4:8] = b"\xff\xff\xff\xff"
    assert AudioClip.from_wav(bytes(made)) == AudioClip.from_wav(wav())


@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=9))
def test_arrays_stay_what_they_are(samples: list[float]) -> None:
    array = np.resize(np.array(samples, np.float32), 900)
    clip = AudioClip.from_array(array, RATE)
    assert np.array_equal(clip.array(), array)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(clip), type=AudioClip)
    assert again == clip


def test_integers_stay_small() -> None:
    clip = AudioClip.from_array(np.array([-32768, 0, 16384] * 300, np.int16), RATE)
    assert len(clip.samples) == 1800
    assert repr(clip) == "AudioClip(0.113 s, 8000 Hz, s16)"
    assert clip.array()[:3].tolist() == [-1.0, 0.0, 0.5]


NOT_WAV = {
    "nothing": b"",
    "a cut header": wav()[:20],
    "text": b"hello world, this is no sound",
    "floats": wav().replace(b"\x01\x00\x01\x00", b"\x03\x00\x01\x00", 1),
    "no data": wav()[:36],
}


@pytest.mark.parametrize("case", NOT_WAV)
def test_what_is_no_wav(case: str) -> None:
    with pytest.raises(InvalidRequestError, match="is not a WAV file that can be read"):
        AudioClip.from_wav(NOT_WAV[case])


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"cannot read the audio file .*No such file"):
        AudioClip.from_wav(tmp_path / "none.wav")
    with pytest.raises(InvalidRequestError, match="cannot read the audio file"):
        AudioClip.from_wav(tmp_path)


WRONG = {
    "no samples": (wav(samples=0), "has no samples"),
    "too short": (wav(samples=700), r"lasts 0.087 s; give at least 0.1 s"),
    "slow": (wav(rate=100), "sample rate is 100 Hz; give one from 4000 to 192000"),
    "fast": (wav(rate=400_000), "sample rate is 400000 Hz"),
}


@pytest.mark.parametrize("case", WRONG)
def test_sounds_that_are_none(case: str) -> None:
    data, message = WRONG[case]
    with pytest.raises(InvalidRequestError, match=message):
        AudioClip.from_wav(data)


def test_too_long() -> None:
    data = wav(1, rate=4000, samples=int(4000 * MAX_SECONDS) + 1)
    with pytest.raises(InputTooLongError, match="longer than 600 s"):
        AudioClip.from_wav(data)
    assert AudioClip.from_wav(data[:-1]).seconds == MAX_SECONDS


ARRAYS = {
    "two channels": (np.zeros((2, 900), np.float32), r"shape \[2, 900\]"),
    "wide integers": (np.zeros(900, np.int64), "int64; give floats or int16"),
    "text": (np.array(["a"] * 900), "one channel"),
    "not a number": (np.full(900, np.nan, np.float32), "no finite numbers"),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_arrays_that_are_no_sound(case: str) -> None:
    array, message = ARRAYS[case]
    with pytest.raises(InvalidRequestError, match=message):
        AudioClip.from_array(array, RATE)


def test_what_is_no_clip() -> None:
    with pytest.raises(InvalidRequestError, match="is a int; give an AudioClip"):
        as_clips([3])  # type: ignore[list-item]
    with pytest.raises(InvalidRequestError, match="give s16 or f32"):
        AudioClip(bytes(1800), RATE, "u8")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="ends amid a sample"):
        AudioClip(bytes(1801), RATE)
