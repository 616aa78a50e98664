"""Chat with the real voice pipeline, by OpenAI's own client."""

from __future__ import annotations

import base64
import io
import wave
from typing import Any

import numpy as np
import openai
import pytest

from chat_calls import SOUND, openai_client
from live_server import LiveServer

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


def _loudness(samples: np.ndarray) -> float:
    """Root mean square of 16-bit samples, 1 is the most."""
    return float(np.sqrt(np.mean((samples / 32768.0) ** 2)))


def test_text(voice_server: LiveServer) -> None:
    with openai_client(voice_server.url) as client:
        whole = client.chat.completions.create(model="voice", messages=QUESTION)
        chunks = list(
            client.chat.completions.create(
                model="voice",
                messages=QUESTION,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
    assert "Paris" in (whole.choices[0].message.content or "")
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content  # greedy
    assert chunks[-1].usage == whole.usage
    assert whole.usage is not None
    assert whole.usage.completion_tokens > 2


@pytest.mark.slow
def test_parameters_take_effect(voice_server: LiveServer) -> None:
    with openai_client(voice_server.url) as client:
        ask = client.chat.completions.create
        short = ask(model="voice", messages=QUESTION, max_tokens=3)
        stopped = ask(model="voice", messages=QUESTION, stop="Paris")
        drawn = [
            ask(model="voice", messages=QUESTION, temperature=1.5, seed=seed, max_tokens=8)
            for seed in (1, 1, 2)
        ]
    assert short.choices[0].finish_reason == "length"
    assert short.usage is not None
    assert short.usage.completion_tokens == 3
    assert stopped.choices[0].finish_reason == "stop"
    assert "Paris" not in (stopped.choices[0].message.content or "")
    first, again, other = (answer.choices[0].message.content for answer in drawn)
    assert first == again != other


@pytest.mark.slow
def test_speech(voice_server: LiveServer) -> None:
    with openai_client(voice_server.url) as client:
        chunks = list(
            client.chat.completions.create(
                model="voice", messages=QUESTION, stream=True, max_tokens=24, **SOUND
            )
        )
    deltas: list[Any] = [chunk.choices[0].delta for chunk in chunks]
    spoken = [delta.audio for delta in deltas if delta.audio is not None]
    assert "Paris" in "".join(audio.transcript or "" for audio in spoken)
    sound = [base64.b64decode(audio.data) for audio in spoken if audio.data]
    samples = np.frombuffer(b"".join(sound), "<i2")
    assert len(sound) > 1
    assert 0.5 < samples.size / 24_000 < 20
    assert _loudness(samples) > 0.01


@pytest.mark.slow
def test_a_spoken_conversation(voice_server: LiveServer) -> None:
    """What was answered in speech is heard as a question, beside the earlier answer by its id."""
    with openai_client(voice_server.url) as client:
        first = client.chat.completions.create(
            model="voice",
            messages=QUESTION,
            max_tokens=24,
            modalities=["text", "audio"],
            audio={"voice": "alloy", "format": "wav"},
        )
        message = first.choices[0].message
        assert message.audio is not None
        heard = {"data": message.audio.data, "format": "wav"}
        second = client.chat.completions.create(
            model="voice",
            messages=[
                *QUESTION,
                {"role": "assistant", "audio": {"id": message.audio.id}},
                {"role": "user", "content": [{"type": "input_audio", "input_audio": heard}]},
            ],
            max_tokens=16,
            extra_body={"timeline": True},
        )
    with wave.open(io.BytesIO(base64.b64decode(message.audio.data))) as sound:
        assert _loudness(np.frombuffer(sound.readframes(sound.getnframes()), "<i2")) > 0.01
    assert second.choices[0].message.content
    timeline = (second.model_extra or {})["antiphon"]["timeline"]
    assert {stage["stage"] for stage in timeline["stages"]} == {"hearing", "thinker"}


def test_mistakes(voice_server: LiveServer) -> None:
    with openai_client(voice_server.url) as client:
        ask = client.chat.completions.create
        with pytest.raises(openai.BadRequestError) as error:
            ask(model="voice", messages=[{"role": "user", "content": "word " * 5000}])
        assert error.value.code == "input_too_long"
        with pytest.raises(openai.BadRequestError, match="one voice"):
            ask(
                model="voice",
                messages=QUESTION,
                modalities=["audio"],
                audio={"voice": "ethan", "format": "wav"},
            )
        assert ask(
            model="voice", messages=QUESTION, max_tokens=1 << 40
        ).choices  # it ends by itself
