"""A voice conversation over `/v1/realtime` with the real pipeline."""

from __future__ import annotations

import base64

import httpx2
import numpy as np

from live_server import LiveServer
from realtime_caller import calling


async def test_a_conversation_in_text_and_speech(voice_server: LiveServer) -> None:
    async with calling(voice_server.url, model="voice") as caller:
        response = await caller.ask("What is the capital of France?")
        assert response["status"] == "completed"
        assert "Paris" in response["output"][0]["content"][0]["transcript"]
        sound = np.frombuffer(caller.pcm(response["id"]), "<i2")
        assert sound.size > 12_000
        assert np.abs(sound).max() > 1000
        await caller.connection.response.create(response={"output_modalities": ["text"]})
        assert (await caller.done())["status"] in ("completed", "incomplete")


async def test_an_interruption_and_what_follows(voice_server: LiveServer) -> None:
    async with calling(voice_server.url, model="voice") as caller:
        await caller.say("Tell me a long story about the ocean.")
        await caller.connection.response.create()
        first = (await caller.until("response.output_audio.delta"))[-1]
        await caller.connection.response.cancel()
        await caller.connection.conversation.item.truncate(
            item_id=first["item_id"], content_index=0, audio_end_ms=100
        )
        assert (await caller.done())["status"] in ("cancelled", "completed")
        await caller.until("conversation.item.truncated")
        assert (await caller.ask("What is the capital of France?"))["status"] == "completed"


async def test_a_spoken_question(voice_server: LiveServer) -> None:
    """The pipeline's own speech is what it hears."""
    spoken = httpx2.post(
        voice_server.url + "/v1/audio/speech",
        json={
            "model": "voice",
            "voice": "alloy",
            "input": "What is the capital of France?",
            "response_format": "pcm",
        },
        timeout=60,
    )
    assert spoken.status_code == 200
    async with calling(voice_server.url, model="voice") as caller:
        await caller.set(audio={"input": {"transcription": {"model": "whisper-1"}}})
        for start in range(0, len(spoken.content), 24_000):
            piece = base64.b64encode(spoken.content[start : start + 24_000]).decode()
            await caller.connection.input_audio_buffer.append(audio=piece)
        await caller.connection.input_audio_buffer.commit()
        await caller.connection.response.create()
        response = await caller.done()
        assert response["status"] == "completed"
        (heard,) = [event for event in caller.events if "transcription" in event["type"]]
        assert heard["type"] == "conversation.item.input_audio_transcription.completed"
        assert "capital" in heard["transcript"].lower()
        assert len(caller.pcm(response["id"])) > 24_000
