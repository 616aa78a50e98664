"""Sound files that callers send, in the formats that browsers record and people keep.

WAV is read by the standard library, everything else by the FFmpeg that PyAV brings along: in memory
alone, by the one demuxer that the file's first bytes name, with decoders for sound and no others. A
file cannot make it open another one, or an address.
"""

from __future__ import annotations

import asyncio
import functools
import io
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import av
import numpy as np
from av.container import InputContainer

from antiphon.errors import InputTooLongError, InvalidRequestError, OverloadedError
from antiphon.orchestrator.wav import pcm16
from antiphon.pipeline.audio import MAX_SECONDS, AudioClip
from antiphon.serve.mp4_tables import check_tables
from antiphon.serve.wav_chunks import plain_wav

_FORMATS = "WAV, MP3, FLAC, Ogg, WebM, M4A or AAC"
_MAX_RATE = 48_000  # Hz; files of more are brought down to it
MAX_DECODE_S = 10.0
"""For one file; ten minutes of sound take about one."""
MAX_WAITING = 16
"""Files that may wait for a thread; one more is refused."""
_PROBE_BYTES = 1 << 20
_DECODERS = (
    "mp3float,mp3,flac,opus,libopus,vorbis,libvorbis,aac,alac,"
    "pcm_s16le,pcm_s24le,pcm_s32le,pcm_u8,pcm_f32le,pcm_f64le,pcm_alaw,pcm_mulaw"
)
# Of their own: long files must not keep those waiting that answer others.
_COUNT = 2
_THREADS = ThreadPoolExecutor(_COUNT, thread_name_prefix="sound-in")
_PLACES = threading.BoundedSemaphore(_COUNT + MAX_WAITING)


class _Patience(io.BytesIO):
    """A file of which nothing more can be read once it has been given up, or has taken too long.

    FFmpeg can be kept busy for long by what is no sound at all; it ends only where a read fails.
    """

    def __init__(self, data: bytes, gone: threading.Event) -> None:
        super().__init__(data)
        self._gone = gone
        self._due = time.monotonic() + MAX_DECODE_S

    @property
    def over(self) -> bool:
        return self._gone.is_set() or time.monotonic() > self._due

    def read(self, size: int | None = -1, /) -> bytes:
        if self.over:
            raise TimeoutError("it takes too long")
        return super().read(size)


async def decode(data: bytes, *, max_s: float, name: str = "the audio") -> AudioClip:
    """A whole sound file as one channel, the mean of its own; no more than `max_s` is decoded.

    The clip has the file's rate, but at most 48 kHz. Of a video its sound is taken. When the caller
    is cancelled, the decoding ends too. Raises InvalidRequestError for what is no sound file, is
    damaged or takes too long, InputTooLongError, OverloadedError if too many files wait.
    """
    if not _PLACES.acquire(blocking=False):
        raise OverloadedError(f"{MAX_WAITING} sound files wait to be decoded; try again later")
    gone = threading.Event()
    work = functools.partial(decode_now, data, max_s=max_s, name=name, gone=gone)
    decoding = _THREADS.submit(work)
    decoding.add_done_callback(lambda _: _PLACES.release())
    try:
        return await asyncio.wrap_future(decoding)
    finally:
        gone.set()


def decode_now(
    data: bytes, *, max_s: float, name: str = "the audio", gone: threading.Event | None = None
) -> AudioClip:
    """As `decode`; blocks for up to a second per ten minutes of sound.

    Once `gone` is set, the result is of no use to anybody: it ends soon, with an error.
    """
    limit_s = min(max_s, MAX_SECONDS)
    format_ = _sniff(data)
    if format_ is None:
        raise InvalidRequestError(f"{name} is no sound file that can be read; give {_FORMATS}")
    if format_ == "wav":
        data = plain_wav(data) or b""
        if (clip := _from_wav(data)) is not None:
            if clip.seconds > limit_s:
                raise _too_long(name, limit_s)
            return clip
    if format_ == "mov":
        check_tables(data, name)
    file = _Patience(data, threading.Event() if gone is None else gone)
    try:
        with _open(file, format_) as container:
            return _decode(container, file, limit_s, name)
    except (av.FFmpegError, ValueError, TimeoutError) as error:
        if file.over:
            raise InvalidRequestError(
                f"{name} takes too long to decode; give a simpler file"
            ) from error
        raise InvalidRequestError(
            f"{name} is damaged, cut off or no {format_} file ({_reason(error)}); give {_FORMATS}"
        ) from error


def _reason(error: Exception) -> str:
    """In one line; FFmpeg's own words without the number and the place."""
    reason = error.strerror if isinstance(error, av.FFmpegError) else str(error)
    return " ".join(str(reason).split())[:200]


def _sniff(data: bytes) -> str | None:
    """The demuxer for a file that begins like this; None for what is not taken."""
    if data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE":
        return "wav"
    for magic, format_ in _MAGIC:
        if data.startswith(magic):
            return format_
    if data[4:8] == b"ftyp":
        return "mov"
    if len(data) > 2 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0:
        # The two bits of the layer are 0 in AAC's frames, and never in those of MPEG audio.
        return "mp3" if data[1] & 0x06 else "aac"
    return None


_MAGIC = (
    (b"ID3", "mp3"),
    (b"fLaC", "flac"),
    (b"OggS", "ogg"),
    (b"\x1a\x45\xdf\xa3", "matroska"),
)


def _from_wav(data: bytes) -> AudioClip | None:
    """What the standard library can read; it knows neither floats nor extended headers."""
    try:
        return AudioClip.from_wav(data)
    except (InvalidRequestError, ValueError):  # the latter for samples of more than 32 bits
        return None


def _open(file: _Patience, format_: str) -> InputContainer:
    return av.open(
        file,
        mode="r",
        format=format_,
        options={
            "codec_whitelist": _DECODERS,
            "protocol_whitelist": "none",  # there is no protocol of this name
            "probesize": str(_PROBE_BYTES),
        },
        metadata_errors="replace",  # titles and names are not looked at
    )


def _decode(container: InputContainer, file: _Patience, limit_s: float, name: str) -> AudioClip:
    """The container's first sound.

    Raises av.FFmpegError, ValueError, TimeoutError and the caller's errors.
    """
    if not container.streams.audio:
        raise InvalidRequestError(f"{name} has no sound in it; give {_FORMATS}")
    rate, count, parts = 0, 0, []
    for frame in _frames(container, file):
        rate = frame.sample_rate
        channels = frame.to_ndarray()  # float32 [channels, n]
        if not np.isfinite(channels).all():
            raise InvalidRequestError(f"{name} has samples that are no finite numbers; mend it")
        mono = channels.mean(axis=0, dtype=np.float32)
        count += mono.size
        if count > limit_s * rate:
            raise _too_long(name, limit_s)
        parts.append(pcm16(mono))
    if not rate:
        raise InvalidRequestError(f"{name} has no samples; record something")
    return AudioClip(b"".join(parts), rate)


def _frames(container: InputContainer, file: _Patience) -> Iterator[av.AudioFrame]:
    """The first sound as planar floats of one rate. Raises as `_decode`."""
    stream = container.streams.audio[0]
    resampler, rate = None, 0
    for packet in container.demux(stream):
        if packet.is_corrupt:
            raise ValueError("a packet is cut off")
        for frame in packet.decode():
            if resampler is None:
                rate = frame.sample_rate
                resampler = av.AudioResampler(format="fltp", rate=min(rate, _MAX_RATE))
            if frame.sample_rate != rate:
                raise ValueError("its sample rate changes")
            yield from resampler.resample(frame)
        if file.over:
            raise TimeoutError("it takes too long")
    if resampler is not None and rate > _MAX_RATE:
        yield from resampler.resample(None)


def _too_long(name: str, limit_s: float) -> InputTooLongError:
    return InputTooLongError(
        f"{name} lasts longer than {limit_s:g} s, which is the most that is heard: split it"
    )
