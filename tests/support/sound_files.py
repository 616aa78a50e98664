"""Sound files of all kinds, made here, and whether two sounds are the same."""

from __future__ import annotations

import io
from fractions import Fraction

import av
import numpy as np
import numpy.typing as npt
import scipy.signal
from av.container import OutputContainer

Samples = npt.NDArray[np.float32]

RATE = 24_000  # Hz


def sweep(seconds: float = 1.0, rate: int = RATE) -> Samples:
    """A tone that rises from 200 to 2000 Hz: no part of it is like another."""
    t = np.arange(int(seconds * rate)) / rate
    made = 0.5 * scipy.signal.chirp(t, 200, seconds, 2000)
    return np.asarray(made, np.float32)


def likeness(sound: Samples, other: Samples) -> float:
    """Their correlation where they fit best, 1 for the same; codecs put silence in front."""
    norm = float(np.linalg.norm(sound) * np.linalg.norm(other))
    return float(np.max(scipy.signal.correlate(sound, other, method="fft"))) / norm


def at_rate(samples: Samples, old: int, new: int) -> Samples:
    """Resampled, by whole factors."""
    factor = np.gcd(old, new)
    made = scipy.signal.resample_poly(samples, new // factor, old // factor)
    return np.asarray(made, np.float32)


def file_of(
    samples: Samples,
    codec: str,
    container: str,
    *,
    layout: str = "mono",
    video: bool = False,
    title: str | None = None,
    rate: int = RATE,
) -> bytes:
    """A file as FFmpeg writes it; `video` adds a picture, `rate` is the file's in Hz."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        if title is not None:
            out.metadata["title"] = title
        stream = out.add_stream(codec, rate=rate, layout=layout)
        assert isinstance(stream, av.AudioStream)
        if video:
            _add_picture(out)
        channels = 2 if layout == "stereo" else 1
        packed = np.repeat(samples, channels).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(packed, format="flt", layout=layout)
        frame.sample_rate, frame.time_base, frame.pts = RATE, Fraction(1, RATE), 0
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return file.getvalue()


def silent_film() -> bytes:
    """An MP4 file with a picture and no sound."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as out:
        _add_picture(out)
    return file.getvalue()


def _add_picture(out: OutputContainer) -> None:
    stream = out.add_stream("mpeg4", rate=10)
    assert isinstance(stream, av.VideoStream)
    stream.width = stream.height = 64
    stream.pix_fmt = "yuv420p"
    black = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8))
    out.mux([*stream.encode(black), *stream.encode(None)])
