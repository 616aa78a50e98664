"""Chat in sound, by OpenAI's own client: spoken questions, spoken answers."""

from __future__ import annotations

import base64
import io
import wave
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import openai
import pytest
from openai import OpenAI

from antiphon.pipeline.topology import Entry
from antiphon.serve import sound_in
from antiphon.testing.fake_stage import Answer
from chat_calls import ASK, SOUND, openai_client, post
from fake_server import ANSWERS, FAKE, FakeServer, WordsEntry

SAMPLES = np.array((0.0, 0.5, -0.5, 0.25) * 1200, np.float32)  # what code2wav makes
DEAF = replace(
    FAKE, entries=(Entry("chat", "thinker", "fake_server:WordsEntry", inputs=("text",)),)
)


@pytest.fixture(scope="module")
def two_seconds() -> Iterator[FakeServer]:
    """A server that hears no more than two seconds."""
    with FakeServer(settings={"max_audio_s": 2.0}) as server:
        yield server
        server.check_clean()


def _ask(client: OpenAI, **given: Any) -> Any:
    return client.chat.completions.create(**{"model": "fake", "messages": ASK} | given)


def _wav(seconds: float = 0.5, rate: int = 16_000) -> str:
    tone = np.sin(np.arange(int(seconds * rate)) * 0.2) * 20_000
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(tone.astype("<i2").tobytes())
    return base64.b64encode(file.getvalue()).decode()


def _said(data: str, format: str = "wav") -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": data, "format": format}}


def _question(*parts: dict[str, Any]) -> list[Any]:
    return [{"role": "user", "content": list(parts)}]


@pytest.mark.parametrize("modalities", [["text", "audio"], ["audio"]])
def test_a_spoken_answer(fake_server: FakeServer, modalities: list[str]) -> None:
    """As at OpenAI: the text is the sound's transcript, and there is no other."""
    audio = {"voice": "alloy", "format": "wav"}
    with openai_client(fake_server.url) as client:
        answer = _ask(client, modalities=modalities, audio=audio)
    message = answer.choices[0].message
    assert message.content is None
    assert message.audio.transcript == "one two three"
    assert message.audio.expires_at > answer.created
    assert message.audio.id.startswith("audio-")
    with wave.open(io.BytesIO(base64.b64decode(message.audio.data))) as sound:
        assert (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) == (24_000, 1, 2)
        heard = np.frombuffer(sound.readframes(sound.getnframes()), "<i2")
    np.testing.assert_allclose(heard / 32767, SAMPLES, atol=1e-4)


@pytest.mark.parametrize("format", ["mp3", "flac", "opus", "aac"])
def test_formats(fake_server: FakeServer, format: str) -> None:
    with openai_client(fake_server.url) as client:
        answer = _ask(
            client, modalities=["text", "audio"], audio={"voice": "alloy", "format": format}
        )
    data = base64.b64decode(answer.choices[0].message.audio.data)
    clip = sound_in.decode_now(data, max_s=10)
    assert clip.seconds == pytest.approx(0.2, abs=0.1)
    assert np.abs(clip.array()).max() > 0.1


def test_a_streamed_spoken_answer(fake_server: FakeServer) -> None:
    with openai_client(fake_server.url) as client:
        chunks = list(_ask(client, stream=True, **SOUND))
    # The package's own type has what it knows; it keeps the rest as it came.
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert deltas[0].role == "assistant"
    assert all(delta.content is None for delta in deltas)
    spoken = [delta.audio for delta in deltas if delta.audio is not None]
    assert len({audio.id for audio in spoken}) == 1
    assert "".join(audio.transcript or "" for audio in spoken) == "one two three"
    data = b"".join(base64.b64decode(audio.data) for audio in spoken if audio.data)
    np.testing.assert_allclose(np.frombuffer(data, "<i2") / 32767, SAMPLES, atol=1e-4)
    assert spoken[-1].expires_at > chunks[0].created
    assert [audio.expires_at for audio in spoken[:-1]] == [None] * (len(spoken) - 1)
    assert [chunk.choices[0].finish_reason for chunk in chunks][-2:] == [None, "stop"]


def test_sound_comes_at_openais_rate() -> None:
    """pcm16 has no header that would tell a pipeline's own rate."""
    with (
        FakeServer(topology=replace(FAKE, sample_rate=16_000)) as server,
        openai_client(server.url) as client,
    ):
        chunks = list(_ask(client, stream=True, **SOUND))
    spoken = [chunk.choices[0].delta.audio for chunk in chunks]
    data = b"".join(base64.b64decode(audio.data) for audio in spoken if audio and audio.data)
    assert len(data) // 2 == pytest.approx(SAMPLES.size * 1.5, abs=32)


def test_a_spoken_answer_is_referred_to_by_its_id(fake_server: FakeServer) -> None:
    """By the id alone, by the message as it came, and in words if the server has forgotten it."""
    with openai_client(fake_server.url) as client:
        message = _ask(client, **SOUND).choices[0].message
        *_, last, _ = _ask(client, stream=True, **SOUND)
        for past in (
            {"role": "assistant", "audio": {"id": message.audio.id}},
            {"role": "assistant", "audio": {"id": last.choices[0].delta.audio.id}},
            message,
            {"role": "assistant", "content": None, "audio": {"id": "x", "transcript": "four"}},
        ):
            _ask(client, messages=[*ASK, past, *ASK])
        with pytest.raises(openai.BadRequestError, match="not known") as error:
            _ask(client, messages=[*ASK, {"role": "assistant", "audio": {"id": "x"}}, *ASK])
    assert error.value.param == "messages.1.audio.id"
    said = [request.messages[1].content for request in WordsEntry.seen[-4:]]
    assert said == ["one two three"] * 3 + ["four"]


def test_an_answer_without_a_word_has_no_sound() -> None:
    answers = ANSWERS | {"thinker": Answer(parts=0), "talker": Answer(parts=0)}
    with FakeServer(answers=answers) as server, openai_client(server.url) as client:
        audio = _ask(client, **SOUND).choices[0].message.audio
        chunks = list(_ask(client, stream=True, **SOUND))
    assert (audio.transcript, audio.data) == ("", "")
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_the_voice_is_the_speaker(fake_server: FakeServer) -> None:
    with openai_client(fake_server.url) as client:
        for audio in (
            {"voice": "ethan", "format": "wav"},
            {"voice": {"id": "chelsie"}, "format": "wav"},
            {"voice": "default", "format": "wav"},
            {"format": "wav"},
        ):
            _ask(client, modalities=["text", "audio"], audio=audio)
    params = [dict(request.params) for request in WordsEntry.seen[-4:]]
    assert params == [{"speaker": "ethan"}, {"speaker": "chelsie"}, {}, {}]


def test_one_voice_answers_to_openais_names() -> None:
    with FakeServer(topology=DEAF) as server, openai_client(server.url) as client:
        _ask(client, **SOUND)
        assert not WordsEntry.seen[-1].params
        with pytest.raises(openai.BadRequestError, match="one voice"):
            _ask(client, modalities=["audio"], audio={"voice": "ethan", "format": "wav"})


def test_a_spoken_question(fake_server: FakeServer) -> None:
    with openai_client(fake_server.url) as client:
        question = _question({"type": "text", "text": "what is said"}, _said(_wav()), _said(_wav()))
        answer = _ask(client, messages=question)
    assert answer.choices[0].message.content == "one two three"
    (turn,) = WordsEntry.seen[-1].messages
    assert turn.content == "what is said"
    assert [clip.seconds for clip in turn.audio] == [0.5, 0.5]


def test_a_pipeline_that_does_not_hear() -> None:
    with FakeServer(topology=DEAF) as server, openai_client(server.url) as client:
        with pytest.raises(openai.BadRequestError, match="does not hear") as error:
            _ask(client, messages=_question(_said(_wav())))
        server.check_clean()
    assert error.value.param == "messages.0.content.0.input_audio"


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([_said("no base64!")], "no base64"),
        ([_said("")], "no sound file"),
        ([_said(base64.b64encode(b"RIFF nothing").decode())], "no sound file"),
        ([_said(_wav()[:80])], "messages.0.content.0.input_audio"),
        ([_said(_wav(0.01))], "0.1 s"),
        ([_said(_wav(1.5)), _said(_wav(1.5))], "more than 2 s"),
        ([_said(_wav(0.1))] * 17, "at most 16"),
        ([_said(_wav(), format="x" * 100)], "format"),
    ],
)
def test_sound_that_is_none(two_seconds: FakeServer, parts: list[Any], words: str) -> None:
    answer = post(two_seconds, messages=_question(*parts))
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"modalities": ["text", "audio"]}, "audio"),
        (SOUND | {"stream": True, "audio": {"format": "wav", "voice": "alloy"}}, "audio.format"),
        (SOUND | {"stop": "two"}, "stop"),
        (SOUND | {"audio": {"format": "midi", "voice": "alloy"}}, "audio.format"),
        ({"modalities": []}, "modalities"),
        ({"modalities": ["image"]}, "modalities.0"),
    ],
)
def test_sound_asked_for_wrongly(
    fake_server: FakeServer, given: dict[str, Any], param: str
) -> None:
    answer = post(fake_server, **given)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
