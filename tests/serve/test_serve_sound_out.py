"""Sound in every format is the same sound, whole or in pieces."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from antiphon.errors import InvalidRequestError
from antiphon.serve.sound_in import decode_now
from antiphon.serve.sound_out import FORMATS, PCM_RATE, encode, finish, make_encoder
from sound_files import RATE, Samples, at_rate, likeness, sweep


def pieces(samples: Samples, format: str, rate: int, *, streaming: bool) -> list[bytes]:
    """What the encoder gives for each tenth of a second, and at the end."""
    encoder = make_encoder(format, rate, streaming=streaming)
    step = rate // 10
    given = [encoder.feed(samples[at : at + step]) for at in range(0, len(samples), step)]
    return [*given, encoder.finish()]


def decoded(data: bytes, format: str) -> tuple[Samples, int]:
    if format in ("pcm", "pcm16"):
        return (np.frombuffer(data, "<i2") / np.float32(2**15)).astype(np.float32), PCM_RATE
    clip = decode_now(data, max_s=60)
    return clip.array(), clip.sample_rate


def test_every_format_has_an_encoder() -> None:
    assert FORMATS == ("wav", "pcm", "pcm16", "flac", "opus", "mp3", "aac")


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("rate", [16_000, 24_000, 44_100])
@pytest.mark.parametrize("format", FORMATS)
def test_the_sound_comes_back(format: str, rate: int, streaming: bool) -> None:
    sound = sweep(rate=rate)
    back, back_rate = decoded(b"".join(pieces(sound, format, rate, streaming=streaming)), format)
    assert likeness(at_rate(back, back_rate, 48_000), at_rate(sound, rate, 48_000)) > 0.98
    assert len(back) / back_rate == pytest.approx(1.0, abs=0.15)  # codecs have frames to fill


@pytest.mark.parametrize("format", FORMATS)
def test_a_stream_flows(format: str) -> None:
    """Nobody waits for a second half to hear the first."""
    given = pieces(sweep(2.0), format, RATE, streaming=True)
    half = sum(len(piece) for piece in given[:10])
    assert half > 0.4 * sum(len(piece) for piece in given)


@pytest.mark.parametrize("format", FORMATS)
def test_a_whole_file_comes_at_the_end(format: str) -> None:
    assert not any(pieces(sweep(), format, RATE, streaming=False)[:-1])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("rate", [16_000, 24_000])
def test_no_sound_is_no_mistake(format: str, rate: int) -> None:
    encoder = make_encoder(format, rate, streaming=True)
    assert encoder.feed(np.zeros(0, np.float32)) + encoder.finish() is not None


def test_the_length_in_a_wav_header() -> None:
    whole = b"".join(pieces(sweep(), "wav", RATE, streaming=False))
    assert struct.unpack_from("<I", whole, 4) == (len(whole) - 8,)
    assert struct.unpack_from("<I", whole, 40) == (len(whole) - 44,)
    streamed = b"".join(pieces(sweep(), "wav", RATE, streaming=True))
    assert struct.unpack_from("<I", streamed, 40) == (0xFFFFFFFF,)
    assert streamed[44:] == whole[44:]


def test_too_loud_a_sound_is_clipped() -> None:
    for format in FORMATS:
        loud = np.full(RATE, 3.0, np.float32)
        back, _ = decoded(b"".join(pieces(loud, format, RATE, streaming=True)), format)
        assert back.max() <= 1.0


async def test_encoding_from_an_event_loop() -> None:
    for format in FORMATS:
        back, rate = decoded(await encode(format, sweep(), RATE), format)
        assert likeness(at_rate(back, rate, RATE), sweep()) > 0.98
    assert await finish(make_encoder("wav", RATE, streaming=True))


def test_an_unknown_format() -> None:
    with pytest.raises(InvalidRequestError, match="did you mean opus"):
        make_encoder("opuss", RATE, streaming=True)
