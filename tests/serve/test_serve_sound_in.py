"""Sound files of callers: the usual formats are heard, and nothing that is sent does harm."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import resource
import struct
import threading
import time
import wave

import httpx2
import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from antiphon.errors import (
    CallerError,
    InputTooLongError,
    InvalidRequestError,
    OverloadedError,
)
from antiphon.orchestrator.wav import pcm16
from antiphon.serve import sound_in
from antiphon.serve.mp4_tables import MAX_SAMPLES
from antiphon.serve.sound_in import decode, decode_now
from fake_server import FakeServer
from sound_files import RATE, at_rate, file_of, likeness, silent_film, sweep

SOUND = sweep()


def wav(samples: np.ndarray, rate: int = RATE) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(pcm16(samples))
    return file.getvalue()


FILES = {
    "wav": wav(SOUND),
    "wav with floats": file_of(SOUND, "pcm_f32le", "wav"),
    "wav with an extended header": file_of(SOUND, "pcm_s24le", "wav", layout="stereo"),
    "mp3": file_of(SOUND, "libmp3lame", "mp3"),
    "flac": file_of(SOUND, "flac", "flac"),
    "ogg opus": file_of(SOUND, "libopus", "ogg"),
    "webm": file_of(SOUND, "libopus", "webm"),
    "m4a": file_of(SOUND, "aac", "ipod"),
    "aac": file_of(SOUND, "aac", "adts"),
    "stereo": file_of(SOUND, "flac", "flac", layout="stereo"),
    "video": file_of(SOUND, "aac", "mp4", video=True),
    "fragmented": file_of(SOUND, "aac", "ismv"),
}


@pytest.mark.parametrize("kind", FILES)
async def test_what_is_heard(kind: str) -> None:
    clip = await decode(FILES[kind], max_s=10)
    back = at_rate(clip.array(), clip.sample_rate, RATE)
    assert likeness(back, SOUND) > 0.98
    assert clip.seconds == pytest.approx(1.0, abs=0.15)


def test_the_rate_stays_up_to_48_khz() -> None:
    assert decode_now(FILES["flac"], max_s=10).sample_rate == RATE
    assert decode_now(FILES["wav"], max_s=10).sample_rate == RATE
    clip = decode_now(file_of(SOUND, "flac", "flac", rate=96_000, layout="stereo"), max_s=10)
    assert clip.sample_rate == 48_000
    assert likeness(at_rate(clip.array(), 48_000, RATE), SOUND) > 0.98


@pytest.mark.parametrize("kind", FILES)
def test_too_long(kind: str) -> None:
    with pytest.raises(InputTooLongError, match=r"the clip lasts longer than 0\.5 s.*split it"):
        decode_now(FILES[kind], max_s=0.5, name="the clip")


def test_little_is_decoded_of_what_is_too_long() -> None:
    silence = np.zeros(150 * RATE, np.float32)
    file = file_of(silence, "flac", "flac")
    assert len(file) < 1 << 20
    began = time.perf_counter()
    with pytest.raises(InputTooLongError):
        decode_now(file, max_s=1)
    assert time.perf_counter() - began < 0.5


@pytest.mark.parametrize("kind", [kind for kind in FILES if not kind.startswith("wav")])
@pytest.mark.parametrize("kept", [0, 1, 5, 12, 40])
def test_the_beginning_of_a_file(kind: str, kept: int) -> None:
    with pytest.raises(InvalidRequestError):
        decode_now(FILES[kind][:kept], max_s=10)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"\x89PNG\r\n\x1a\n" + bytes(100),
        b"#EXTM3U\nhttp://127.0.0.1:1/x.mp3\n",
        b"ffconcat version 1.0\nfile '/etc/hostname'\n",
        b"RIFF\x24\x00\x00\x00AVI LIST",
        b"v=0\nc=IN IP4 127.0.0.1\nm=audio 1 RTP/AVP 0\n",
    ],
)
def test_no_sound_file(data: bytes) -> None:
    with pytest.raises(InvalidRequestError, match=r"the audio is no sound file.*give WAV, MP3"):
        decode_now(data, max_s=10)


def test_a_video_without_sound() -> None:
    with pytest.raises(InvalidRequestError, match="no sound in it"):
        decode_now(silent_film(), max_s=10)


def test_too_short() -> None:
    for file in (wav(SOUND[:100]), file_of(SOUND[:100], "flac", "flac")):
        with pytest.raises(InvalidRequestError, match=r"give at least 0\.1 s"):
            decode_now(file, max_s=10)


def test_a_title_in_no_encoding() -> None:
    file = file_of(SOUND, "libmp3lame", "mp3", title="title" * 4)
    broken = file.replace(b"titletitle", b"\xff\xfe\xff\xfe\xff\xfe\xff\xfe\xff\xfe")
    assert decode_now(broken, max_s=10).seconds == pytest.approx(1.0, abs=0.1)


# --- files that lie ---------------------------------------------------------------------------


def patched(file: bytes, box: bytes, offset: int, *numbers: int) -> bytes:
    """The file with numbers behind the name of a box."""
    changed = bytearray(file)
    at = changed.index(box) + 4 + offset
    changed[at : at + 4 * len(numbers)] = struct.pack(f">{len(numbers)}I", *numbers)
    return bytes(changed)


LIES = {
    "samples of one size": patched(FILES["m4a"], b"stsz", 4, 1, 60_000_000),
    "samples per chunk": patched(FILES["m4a"], b"stsc", 12, 0xFFFFFFFF),
    "samples of a fragment": patched(FILES["fragmented"], b"trun", 4, 60_000_000),
}


@pytest.mark.parametrize("lie", LIES)
def test_tables_that_announce_too_much(lie: str) -> None:
    """FFmpeg would take gigabytes for them."""
    with pytest.raises(InvalidRequestError, match=r"announces \d+ samples"):
        decode_now(LIES[lie], max_s=10)


def test_a_header_that_hides_its_tables() -> None:
    file = FILES["m4a"].replace(b"udta", b"cmov")
    with pytest.raises(InvalidRequestError, match="too complicated"):
        decode_now(file, max_s=10)


@pytest.mark.parametrize(
    "junk",
    [
        struct.pack(">I4s", 8, b"free") * (1 << 19),
        struct.pack(">I4sII", 0, b"stsc", 0, 0xFFFFFFFF) * (1 << 18),
        struct.pack(">I4sI", 12, b"trun", 0) * (1 << 18),
    ],
    ids=["boxes", "tables", "fragments"],
)
def test_many_boxes_do_not_take_long(junk: bytes) -> None:
    began = time.perf_counter()
    with pytest.raises(InvalidRequestError):
        decode_now(b"\x00\x00\x00\x10ftypM4A \x00\x00\x00\x00" + junk, max_s=10)
    assert time.perf_counter() - began < 3


def test_as_many_samples_as_may_be() -> None:
    file = patched(FILES["m4a"], b"stsz", 4, 1, MAX_SAMPLES)
    with pytest.raises(InvalidRequestError, match="damaged"):
        decode_now(file, max_s=10)


def test_a_wav_header_that_claims_hours() -> None:
    file = bytearray(FILES["wav"])
    file[40:44] = struct.pack("<I", 0xFFFFFFFF)
    assert decode_now(bytes(file), max_s=10).seconds == pytest.approx(1.0)


@pytest.mark.parametrize("kind", ["wav", "wav with floats"])
def test_a_wav_chunk_that_claims_gigabytes(kind: str) -> None:
    """FFmpeg would take as much memory as the text is said to have."""
    file = FILES[kind]
    text = struct.pack("<4sI4s4sI", b"LIST", 0xC500001A, b"INFO", b"ISFT", 0x7FFFFFF0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidRequestError, match="damaged"):
        decode_now(file[:12] + text + file[12:], max_s=10)
    at = file.index(b"data")
    with pytest.raises(InvalidRequestError, match="damaged"):
        decode_now(file[:at] + text + file[at:], max_s=10)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


def test_a_wav_with_text_in_it() -> None:
    file, text = FILES["wav"], struct.pack("<4sI", b"LIST", 5) + b"INFOx\0"
    for at in (12, file.index(b"data"), len(file)):
        assert decode_now(file[:at] + text + file[at:], max_s=10) == decode_now(file, max_s=10)


def test_wav_samples_of_64_bits() -> None:
    assert decode_now(file_of(SOUND, "pcm_f64le", "wav"), max_s=10).seconds == pytest.approx(1.0)
    file = bytearray(FILES["wav"])
    file[34:36] = struct.pack("<H", 64)  # of whole numbers: nobody writes that
    harmless(bytes(file))


def test_samples_that_are_no_numbers() -> None:
    file = bytearray(FILES["wav with floats"])
    file[-400:-396] = struct.pack("<f", float("nan"))
    with pytest.raises(InvalidRequestError, match="no finite numbers"):
        decode_now(bytes(file), max_s=10)


# --- files that take long ---------------------------------------------------------------------

ENDLESS = b"OggS" * (6 << 20)  # 24 MiB, in which FFmpeg looks for a page for ten seconds


def test_a_file_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sound_in, "MAX_DECODE_S", 0.3)
    began = time.perf_counter()
    with pytest.raises(InvalidRequestError, match="the clip takes too long to decode; give a simp"):
        decode_now(ENDLESS, max_s=600, name="the clip")
    assert time.perf_counter() - began < 2


async def test_no_thread_works_for_who_has_gone() -> None:
    decoding = [asyncio.ensure_future(decode(ENDLESS, max_s=600)) for _ in range(4)]
    await asyncio.sleep(0)  # two are read, two wait
    began = time.perf_counter()
    for one in decoding:
        one.cancel()
    assert (await decode(FILES["flac"], max_s=10)).seconds == pytest.approx(1.0)
    assert time.perf_counter() - began < 2
    await asyncio.wait(decoding)
    assert all(one.cancelled() for one in decoding)


async def test_only_so_many_files_wait() -> None:
    many = sound_in.MAX_WAITING + 2
    decoding = [asyncio.ensure_future(decode(ENDLESS, max_s=600)) for _ in range(many)]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match=r"16 sound files wait.*try again later"):
        await decode(FILES["wav"], max_s=10)
    for one in decoding:
        one.cancel()
    await asyncio.wait(decoding)
    # The two that were being read give their places back once they have ended.
    await asyncio.gather(*(heard_again() for _ in range(many)))


def test_callers_hear_that_too_many_wait(
    fake_server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = threading.BoundedSemaphore(1)
    monkeypatch.setattr(sound_in, "_PLACES", places)
    audio = {"data": base64.b64encode(FILES["flac"]).decode(), "format": "flac"}
    content = [{"type": "input_audio", "input_audio": audio}]
    body = {"model": "fake", "messages": [{"role": "user", "content": content}]}
    url = fake_server.url + "/v1/chat/completions"
    with places:
        refused = httpx2.post(url, json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
    assert int(refused.headers["retry-after"]) >= 1
    assert httpx2.post(url, json=body).status_code == 200


async def heard_again() -> None:
    async with asyncio.timeout(10):
        while True:
            with contextlib.suppress(OverloadedError):
                assert (await decode(FILES["wav"], max_s=10)).seconds == pytest.approx(1.0)
                return
            await asyncio.sleep(0)


# --- files of any bytes -----------------------------------------------------------------------

fuzz = hypothesis.settings(deadline=None, max_examples=60)
MAGIC = [b"", b"ID3\x04", b"\xff\xfb\x90", b"\xff\xf1", b"fLaC", b"OggS", b"\x1aE\xdf\xa3"]
MAGIC += [b"\x00\x00\x00\x18ftypM4A ", b"RIFF\xff\xff\xff\xffWAVEfmt "]


def harmless(data: bytes) -> None:
    """It is heard, or refused as a mistake of the caller."""
    with contextlib.suppress(CallerError):
        assert decode_now(data, max_s=10).seconds <= 10


@fuzz
@hypothesis.given(st.sampled_from(MAGIC), st.binary(max_size=3000))
def test_random_bytes(magic: bytes, data: bytes) -> None:
    harmless(magic + data)


@fuzz
@hypothesis.given(st.sampled_from(sorted(FILES)), st.floats(0, 1))
def test_files_cut_off(kind: str, part: float) -> None:
    harmless(FILES[kind][: int(part * len(FILES[kind]))])


@fuzz
@hypothesis.given(
    st.sampled_from(sorted(FILES)),
    st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=8)), max_size=8),
    st.booleans(),
)
def test_files_with_wrong_bytes(
    kind: str, changes: list[tuple[float, bytes]], in_header: bool
) -> None:
    data = bytearray(FILES[kind])
    reach = 600 if in_header else len(data)
    for place, new in changes:
        at = int(place * min(reach, len(data)))
        data[at : at + len(new)] = new
    harmless(bytes(data))
