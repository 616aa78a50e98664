"""Audio that a caller gives: clips of one channel. Neither vllm nor torch is imported here."""

from __future__ import annotations

import io
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from antiphon.errors import InputTooLongError, InvalidRequestError

Samples = npt.NDArray[np.float32]
Encoding = Literal["s16", "f32"]

MIN_RATE, MAX_RATE = 4_000, 192_000  # Hz
MIN_SECONDS, MAX_SECONDS = 0.1, 600.0
MAX_CLIPS = 16  # of one request

_WIDTHS = {"s16": 2, "f32": 4}  # bytes


class AudioClip(msgspec.Struct, frozen=True):
    """Sound of one channel. It checks itself when it is made.

    `samples` are little-endian, signed 16-bit integers (`s16`) or float32 from -1 to 1 (`f32`). Any
    rate from 4 to 192 kHz will do: the stage that hears the clip resamples it to its model's.

    Raises InvalidRequestError for what is no sound, InputTooLongError for more than ten minutes.
    """

    samples: bytes
    sample_rate: int  # Hz
    encoding: Encoding = "s16"

    def __post_init__(self) -> None:
        _check_rate(self.sample_rate)
        if self.encoding not in _WIDTHS:
            raise InvalidRequestError(f"the audio's encoding is {self.encoding!r}; give s16 or f32")
        count, rest = divmod(len(self.samples), _WIDTHS[self.encoding])
        if rest:
            raise InvalidRequestError(f"the audio ends amid a sample; it says {self.encoding}")
        _check_length(count, self.sample_rate)
        if self.encoding == "f32" and not np.isfinite(self.array()).all():
            raise InvalidRequestError("the audio has samples that are no finite numbers; mend it")

    def __repr__(self) -> str:
        """Without the samples: a request is shown in errors and tests."""
        return f"AudioClip({self.seconds:.3f} s, {self.sample_rate} Hz, {self.encoding})"

    @property
    def seconds(self) -> float:
        return len(self.samples) / _WIDTHS[self.encoding] / self.sample_rate

    def array(self) -> Samples:
        """The samples, float32 [n], -1 to 1."""
        if self.encoding == "s16":
            return _decode(self.samples, 2)
        return np.frombuffer(self.samples, "<f4").astype(np.float32, copy=False)

    @classmethod
    def from_array(cls, samples: npt.ArrayLike, sample_rate: int) -> AudioClip:
        """Of numbers [n] from -1 to 1, or int16. Raises as the class itself."""
        array = np.asarray(samples)
        if array.ndim != 1 or array.dtype.kind not in "fi":
            raise InvalidRequestError(
                f"the audio is an array of shape {list(array.shape)} and type {array.dtype}; give"
                " one channel [n] of float or int16"
            )
        if array.dtype.kind == "f":
            return cls(array.astype("<f4").tobytes(), sample_rate, "f32")
        if array.dtype != np.int16:
            raise InvalidRequestError(f"the audio is {array.dtype}; give floats or int16")
        return cls(array.astype("<i2").tobytes(), sample_rate, "s16")

    @classmethod
    def from_wav(cls, source: str | Path | bytes) -> AudioClip:
        """Of a WAV file, or of its bytes: PCM of 8 to 32 bits; channels are averaged.

        Raises InvalidRequestError for what cannot be read or is no such file, else as the class.
        """
        if isinstance(source, bytes):
            return _read(io.BytesIO(source), "the audio")
        try:
            with Path(source).open("rb") as file:
                return _read(file, str(source))
        except OSError as error:
            raise InvalidRequestError(
                f"cannot read the audio file {source}: {error.strerror or error}"
            ) from error


AudioSource = AudioClip | str | Path


def as_clips(audio: AudioSource | Sequence[AudioSource]) -> list[AudioClip]:
    """One or several clips; what is not a clip is the path of a WAV file. Raises as `from_wav`."""
    given = audio if isinstance(audio, Sequence) and not isinstance(audio, str) else [audio]
    for clip in given:
        if not isinstance(clip, AudioClip | str | Path):
            raise InvalidRequestError(
                f"the audio is a {type(clip).__name__}; give an AudioClip or the path of a WAV file"
            )
    return [clip if isinstance(clip, AudioClip) else AudioClip.from_wav(clip) for clip in given]


def _read(file: BinaryIO, name: str) -> AudioClip:
    try:
        with wave.open(file) as reader:
            rate, channels, width = (
                reader.getframerate(),
                reader.getnchannels(),
                reader.getsampwidth(),
            )
            _check_rate(rate)
            # Whoever writes to a pipe does not know the length: the header may tell any.
            data = reader.readframes(min(reader.getnframes(), int(MAX_SECONDS * rate) + 1))
    except (wave.Error, EOFError) as error:
        reason = str(error) or "it ends too early"
        raise InvalidRequestError(
            f"{name} is not a WAV file that can be read ({reason}); give one with 16-bit PCM"
        ) from error
    frames = len(data) // (width * channels)
    _check_length(frames, rate)
    data = data[: frames * width * channels]
    if width == 2 and channels == 1:
        return AudioClip(data, rate)
    mono = _decode(data, width).reshape(frames, channels).mean(axis=1, dtype=np.float32)
    return AudioClip(mono.astype("<f4").tobytes(), rate, "f32")


def _decode(data: bytes, width: int) -> Samples:
    """PCM of `width` bytes as float32 from -1 to 1; 8 bits are unsigned in WAV files."""
    if width == 1:
        return np.frombuffer(data, np.uint8).astype(np.float32) / np.float32(128) - np.float32(1)
    if width == 2:
        return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(2**15)
    if width == 3:  # the upper three bytes of 32-bit integers
        padded = np.zeros((len(data) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        data = padded.tobytes()
    return (np.frombuffer(data, "<i4") / 2**31).astype(np.float32)


def _check_rate(rate: int) -> None:
    if not MIN_RATE <= rate <= MAX_RATE:
        raise InvalidRequestError(
            f"the audio's sample rate is {rate} Hz; give one from {MIN_RATE} to {MAX_RATE}"
        )


def _check_length(samples: int, rate: int) -> None:
    if samples == 0:
        raise InvalidRequestError("the audio has no samples; record something")
    if samples < MIN_SECONDS * rate:
        raise InvalidRequestError(
            f"the audio lasts {samples / rate:.3f} s; give at least {MIN_SECONDS} s"
        )
    if samples > MAX_SECONDS * rate:
        raise InputTooLongError(
            f"the audio lasts longer than {MAX_SECONDS:.0f} s, which is the most per clip: split it"
        )
