"""Sound as bytes: 16-bit mono samples, and WAV files of them."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import numpy.typing as npt

from antiphon.errors import OutputPathError
from antiphon.orchestrator.files import whole_file


def pcm16(samples: npt.NDArray[np.float32]) -> bytes:
    """`samples` [n] (-1 to 1, clipped beyond) as 16-bit little-endian integers."""
    data: bytes = np.rint(np.clip(samples, -1.0, 1.0) * 32767.0).astype("<i2").tobytes()
    return data


def check_suffix(path: str | Path) -> None:
    """Raise OutputPathError for a name that promises another format; one without suffix will do."""
    if Path(path).suffix.lower() not in ("", ".wav"):
        raise OutputPathError(f"{path}: sound is written as WAV and nothing else; name a .wav file")


def save_wav(path: str | Path, samples: npt.NDArray[np.float32], sample_rate: int) -> Path:
    """Write `samples` [n] (-1 to 1, clipped beyond) at `sample_rate` Hz; returns the file's path.

    The file appears complete or not at all. Raises OutputPathError.
    """
    check_suffix(path)
    with whole_file(path) as (raw, target), wave.open(raw, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(sample_rate)
        out.writeframes(pcm16(samples))
    return target
