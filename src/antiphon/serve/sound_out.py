"""Sound as callers get it: WAV, raw samples, FLAC, Opus, MP3, AAC; whole or as it is made.

The encoders are those of the FFmpeg that PyAV brings along. A format of which it has none is not
offered.
"""

from __future__ import annotations

import asyncio
import io
import struct
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, cast

import av
import numpy as np
import numpy.typing as npt
from av.audio.codeccontext import AudioCodecContext
from av.container import OutputContainer

from antiphon.errors import InvalidRequestError
from antiphon.orchestrator.wav import pcm16
from antiphon.pipeline.suggest import did_you_mean

Samples = npt.NDArray[np.float32]

PCM_RATE = 24_000
"""Hz of `pcm`, as OpenAI documents it: the bytes do not say it themselves."""
_UNKNOWN = 0xFFFFFFFF  # the length in a WAV header whose writer does not know it: as FFmpeg does it


class Encoder(Protocol):
    """One sound on its way out."""

    @property
    def media_type(self) -> str:
        """For the header Content-Type."""
        ...

    @property
    def instant(self) -> bool:
        """Whether an event loop may do it; else use this module's `feed` and `finish`."""
        ...

    def feed(self, samples: Samples) -> bytes:
        """Encode samples [n], -1 to 1; the bytes that are ready, which may be none."""
        ...

    def finish(self) -> bytes:
        """The rest. Nothing may be fed afterwards."""
        ...


@dataclass(frozen=True, slots=True)
class _Codec:
    """How FFmpeg is asked for a format."""

    codec: str
    container: str
    bit_rate: int | None = None  # bits per second
    streaming: tuple[tuple[str, str], ...] = ()  # options of a container that cannot go back


_MEDIA_TYPES = {
    "wav": "audio/wav",
    "pcm": "audio/pcm",
    "pcm16": "audio/pcm",
    "flac": "audio/flac",
    "opus": "audio/ogg",
    "mp3": "audio/mpeg",
    "aac": "audio/aac",
}
_CODECS = {
    "flac": _Codec("flac", "flac"),
    # A page is sent when it is full: the default of a second would hold sound back.
    "opus": _Codec("libopus", "ogg", 64_000, (("page_duration", "100000"),)),
    # Its first frame would tell the length, and be written at the end.
    "mp3": _Codec("libmp3lame", "mp3", 64_000, (("write_xing", "0"),)),
    "aac": _Codec("aac", "adts", 96_000),
}


def _available(name: str) -> bool:
    if name not in _CODECS:
        return True
    try:
        av.Codec(_CODECS[name].codec, "w")
    except av.codec.codec.UnknownCodecError:
        return False
    return True


FORMATS = tuple(name for name in _MEDIA_TYPES if _available(name))
"""What `make_encoder` knows; `pcm16` is another name of `pcm`."""


def make_encoder(format: str, sample_rate: int, *, streaming: bool) -> Encoder:
    """An encoder of one sound of `sample_rate` Hz.

    `streaming`: bytes come as soon as there are any, and a header does not tell the length;
    otherwise all of them come from `finish`. Raises InvalidRequestError for an unknown format.
    """
    if format not in FORMATS:
        raise InvalidRequestError(
            f"the format {format!r} is not offered{did_you_mean(format, FORMATS)}"
        )
    media_type = _MEDIA_TYPES[format]
    if format == "wav":
        return _Wav(media_type, sample_rate, streaming)
    if format in ("pcm", "pcm16"):
        return _Pcm(media_type, sample_rate, streaming)
    return _Compressed(media_type, _CODECS[format], sample_rate, streaming)


async def feed(encoder: Encoder, samples: Samples) -> bytes:
    """`encoder.feed`, on a thread where it takes time."""
    if encoder.instant:
        return encoder.feed(samples)
    return await asyncio.to_thread(encoder.feed, samples)


async def finish(encoder: Encoder) -> bytes:
    """`encoder.finish`, as `feed`."""
    if encoder.instant:
        return encoder.finish()
    return await asyncio.to_thread(encoder.finish)


async def encode(format: str, samples: Samples, sample_rate: int) -> bytes:
    """A whole file. Raises as `make_encoder`."""
    encoder = make_encoder(format, sample_rate, streaming=False)
    return await feed(encoder, samples) + await finish(encoder)


class _Held:
    """Bytes that are handed out as they come, or all at the end."""

    def __init__(self, streaming: bool) -> None:
        self._streaming = streaming
        self._bytes = bytearray()

    def add(self, data: bytes) -> bytes:
        """What is handed out now."""
        if self._streaming:
            return data
        self._bytes += data
        return b""

    def rest(self, data: bytes) -> bytes:
        return bytes(self._bytes) + data


class _Wav:
    """16-bit mono."""

    instant = True

    def __init__(self, media_type: str, sample_rate: int, streaming: bool) -> None:
        self.media_type = media_type
        self._sample_rate = sample_rate
        self._streaming = streaming
        self._held = _Held(streaming)
        self._begun = False

    def feed(self, samples: Samples) -> bytes:
        return self._opening() + self._held.add(pcm16(samples))

    def finish(self) -> bytes:
        data = self._held.rest(b"")
        return self._opening() if self._streaming else self._header(len(data)) + data

    def _opening(self) -> bytes:
        """The header, once, if it does not have to wait for the length."""
        begun, self._begun = self._begun, True
        return b"" if begun or not self._streaming else self._header(None)

    def _header(self, size: int | None) -> bytes:
        """RIFF's header for PCM and `size` bytes of it; None is not known."""
        riff, data = (_UNKNOWN, _UNKNOWN) if size is None else (36 + size, size)
        rate = self._sample_rate
        fmt = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
        return (
            struct.pack("<4sI4s", b"RIFF", riff, b"WAVE") + fmt + struct.pack("<4sI", b"data", data)
        )


class _Pcm:
    """16-bit little-endian mono at `PCM_RATE`, without a header."""

    def __init__(self, media_type: str, sample_rate: int, streaming: bool) -> None:
        self.media_type = media_type
        self._held = _Held(streaming)
        self.instant = sample_rate == PCM_RATE
        self._resampler = None if self.instant else _Resampler(sample_rate, PCM_RATE)

    def feed(self, samples: Samples) -> bytes:
        if self._resampler is not None:
            samples = self._resampler.feed(samples)
        return self._held.add(pcm16(samples))

    def finish(self) -> bytes:
        rest = b"" if self._resampler is None else pcm16(self._resampler.finish())
        return self._held.rest(rest)


class _Resampler:
    """From one rate to another, in Hz, without seams between what is fed."""

    def __init__(self, old: int, new: int) -> None:
        self._frames = _Frames(old)
        self._resampler = av.AudioResampler(format="flt", layout="mono", rate=new)

    def feed(self, samples: Samples) -> Samples:
        return self._make(self._frames.of(samples)) if samples.size else samples

    def finish(self) -> Samples:
        # FFmpeg's has no end before it has a beginning.
        return self._make(None) if self._frames.any else np.zeros(0, np.float32)

    def _make(self, frame: av.AudioFrame | None) -> Samples:
        made = [np.zeros(0, np.float32)]
        made += [part.to_ndarray()[0] for part in self._resampler.resample(frame)]
        return np.concatenate(made)


class _Frames:
    """Samples as FFmpeg's frames, one after the other."""

    def __init__(self, sample_rate: int) -> None:
        self._rate = sample_rate
        self._count = 0

    @property
    def any(self) -> bool:
        return self._count > 0

    def of(self, samples: Samples) -> av.AudioFrame:
        clipped = np.clip(samples, -1.0, 1.0).astype(np.float32)
        frame = av.AudioFrame.from_ndarray(clipped.reshape(1, -1), format="flt", layout="mono")
        frame.sample_rate = self._rate
        frame.time_base = Fraction(1, self._rate)
        frame.pts = self._count
        self._count += clipped.size
        return frame


class _Sink:
    """A file that cannot go back; what is written is taken from it."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


class _Compressed:
    """A codec of FFmpeg in a container of its."""

    instant = False

    def __init__(self, media_type: str, kind: _Codec, sample_rate: int, streaming: bool) -> None:
        self.media_type = media_type
        self._sink = _Sink() if streaming else None
        self._whole = io.BytesIO()
        options = {"flush_packets": "1", **dict(kind.streaming)} if streaming else {}
        self._container: OutputContainer = av.open(
            self._whole if self._sink is None else self._sink,
            mode="w",
            format=kind.container,
            container_options=options,
        )
        rate = _supported(kind.codec, sample_rate)
        stream = self._container.add_stream(kind.codec, rate=rate, layout="mono")
        self._stream = cast(av.AudioStream, stream)  # what a codec for sound makes
        if kind.bit_rate is not None:
            self._stream.bit_rate = kind.bit_rate
        self._frames = _Frames(sample_rate)

    def feed(self, samples: Samples) -> bytes:
        if samples.size:
            self._container.mux(self._stream.encode(self._frames.of(samples)))
        return b"" if self._sink is None else self._sink.take()

    def finish(self) -> bytes:
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._whole.getvalue() if self._sink is None else self._sink.take()


def _supported(codec: str, sample_rate: int) -> int:
    """The rate that the codec can do and loses nothing, or else its highest. Hz."""
    rates = sorted(AudioCodecContext.create(codec, "w").codec.audio_rates or [sample_rate])
    return next((rate for rate in rates if rate >= sample_rate), rates[-1])
