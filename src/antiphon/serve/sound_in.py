"""Sound files that callers send, in the formats that browsers record and people keep.

WAV is read by the standard library, everything else by the FFmpeg that PyAV brings along: in memory
alone, by the one demuxer that the file's first bytes name, with decoders for sound and no others. A
file cannot make it open another one, or an address.
"""

from __future__ import annotations

import asyncio
import functools
import io
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import av
import numpy as np
from av.container import InputContainer

from antiphon.errors import InputTooLongError, InvalidRequestError
from antiphon.orchestrator.wav import pcm16
from antiphon.pipeline.audio import MAX_SECONDS, AudioClip
from antiphon.serve.mp4_tables import check_tables
from antiphon.serve.wav_chunks import plain_wav

_FORMATS = "WAV, MP3, FLAC, Ogg, WebM, M4A or AAC"
_MAX_RATE = 48_000  # Hz; files of more are brought down to it
_MAX_DECODE_S = 30.0  # of one file; ten minutes of sound take about one
_PROBE_BYTES = 1 << 20
_DECODERS = (
    "mp3float,mp3,flac,opus,libopus,vorbis,libvorbis,aac,alac,"
    "pcm_s16le,pcm_s24le,pcm_s32le,pcm_u8,pcm_f32le,pcm_f64le,pcm_alaw,pcm_mulaw"
)
# Of their own: long files must not keep those waiting that answer others.
_THREADS = ThreadPoolExecutor(2, thread_name_prefix="sound-in")


async def decode(data: bytes, *, max_s: float, name: str = "the audio") -> AudioClip:
    """A whole sound file as one channel, the mean of its own; no more than `max_s` is decoded.

    The clip has the file's rate, but at most 48 kHz. Of a video its sound is taken. Raises
    InvalidRequestError for what is no sound file or is damaged, InputTooLongError.
    """
    work = functools.partial(decode_now, data, max_s=max_s, name=name)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, work)


def decode_now(data: bytes, *, max_s: float, name: str = "the audio") -> AudioClip:
    """As `decode`; blocks for up to a second per ten minutes of sound."""
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
    try:
        with _open(data, format_) as container:
            return _decode(container, limit_s, name)
    except (av.FFmpegError, ValueError) as error:
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


def _open(data: bytes, format_: str) -> InputContainer:
    return av.open(
        io.BytesIO(data),
        mode="r",
        format=format_,
        options={
            "codec_whitelist": _DECODERS,
            "protocol_whitelist": "none",  # there is no protocol of this name
            "probesize": str(_PROBE_BYTES),
        },
        metadata_errors="replace",  # titles and names are not looked at
        timeout=_MAX_DECODE_S,
    )


def _decode(container: InputContainer, limit_s: float, name: str) -> AudioClip:
    """The container's first sound. Raises av.FFmpegError, ValueError and the caller's errors."""
    if not container.streams.audio:
        raise InvalidRequestError(f"{name} has no sound in it; give {_FORMATS}")
    rate, count, parts = 0, 0, []
    for frame in _frames(container, name):
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


def _frames(container: InputContainer, name: str) -> Iterator[av.AudioFrame]:
    """The first sound as planar floats of one rate. Raises as `_decode`."""
    stream = container.streams.audio[0]
    due = time.monotonic() + _MAX_DECODE_S
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
        if time.monotonic() > due:
            raise InvalidRequestError(f"{name} takes too long to decode; give a simpler file")
    if resampler is not None and rate > _MAX_RATE:
        yield from resampler.resample(None)


def _too_long(name: str, limit_s: float) -> InputTooLongError:
    return InputTooLongError(
        f"{name} lasts longer than {limit_s:g} s, which is the most that is heard: split it"
    )
