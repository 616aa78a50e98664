"""Talk with the server over a WebSocket, and interrupt it.

A question is sent as sound, as a microphone would give it. When the answer has been heard for a
second it is interrupted and something else is asked, in text; that answer is heard to its end.

    antiphon serve                      # in another terminal
    pip install 'openai[realtime]'
    python realtime.py
    python realtime.py --audio question.wav     # 16-bit, one channel, 24 kHz
"""

import argparse
import base64
import math
import os
import sys
import wave
from pathlib import Path

from openai import OpenAI, OpenAIError
from openai.resources.realtime.realtime import RealtimeConnection
from websockets.exceptions import WebSocketException

RATE = 24_000  # Hz of 16-bit samples, in both directions
BYTES_PER_SECOND = 2 * RATE


def recording(file: Path) -> bytes:
    try:
        with wave.open(str(file)) as sound:
            if (sound.getnchannels(), sound.getsampwidth(), sound.getframerate()) == (1, 2, RATE):
                return sound.readframes(sound.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        sys.exit(f"{file}: {error}")
    sys.exit(f"{file}: give a WAV file of one channel, 16-bit, {RATE} Hz")


def say(connection: RealtimeConnection, sound: bytes) -> None:
    """As a microphone: piece after piece, then `commit` when the speaker has stopped."""
    size = BYTES_PER_SECOND // 10
    for start in range(0, len(sound), size):
        piece = sound[start : start + size]
        connection.input_audio_buffer.append(audio=base64.b64encode(piece).decode())
    connection.input_audio_buffer.commit()


def write(connection: RealtimeConnection, text: str) -> None:
    content = [{"type": "input_text", "text": text}]
    connection.conversation.item.create(
        item={"type": "message", "role": "user", "content": content}
    )


def answer(connection: RealtimeConnection, interrupt_after_s: float = math.inf) -> bytes:
    """Ask for an answer; its samples, when it is over or has been interrupted."""
    connection.response.create()
    heard = bytearray()
    interrupted = False
    for event in connection:
        match event.type:
            case "conversation.item.input_audio_transcription.completed":
                print(f"Heard: {event.transcript.strip()}")
            case "response.output_audio_transcript.delta":
                print(event.delta, end="", flush=True)
            case "response.output_audio.delta":
                heard += base64.b64decode(event.delta)
                if not interrupted and len(heard) / BYTES_PER_SECOND >= interrupt_after_s:
                    interrupted = True
                    connection.response.cancel()
                    # The model forgets what was not heard of it.
                    connection.conversation.item.truncate(
                        item_id=event.item_id,
                        content_index=0,
                        audio_end_ms=int(1000 * interrupt_after_s),
                    )
            case "response.done":
                seconds = len(heard) / BYTES_PER_SECOND
                print(f"\n[{event.response.status}, {seconds:.1f} s of speech]")
                return bytes(heard)
            case "error":
                sys.exit(f"The server says: {event.error.message}")
    sys.exit("The server has closed the connection.")


def talk(client: OpenAI, model: str, sound: bytes, out: Path) -> None:
    with client.realtime.connect(model=model) as connection:
        connection.session.update(
            session={
                "type": "realtime",
                "output_modalities": ["audio"],
                "audio": {
                    # The server does not detect when a speaker stops: `commit` says it.
                    "input": {"transcription": {"model": model}, "turn_detection": None},
                    "output": {"voice": "alloy"},
                },
            }
        )
        say(connection, sound)
        answer(connection, interrupt_after_s=1.0)
        write(connection, "What is the capital of France?")
        heard = answer(connection)
    with wave.open(str(out), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(heard)
    print(f"The last answer is in {out}.")


def main() -> None:
    parser = argparse.ArgumentParser(description="Talk with the server, and interrupt it.")
    parser.add_argument("--audio", type=Path, metavar="FILE", help="default: the server speaks it")
    parser.add_argument("--out", type=Path, default=Path("answer.wav"), metavar="FILE")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where the server listens")
    parser.add_argument("--model", default="voice")
    options = parser.parse_args()

    key = os.environ.get("ANTIPHON_API_KEY", "none")
    client = OpenAI(base_url=f"{options.url}/v1", api_key=key)
    try:
        if options.audio:
            sound = recording(options.audio)
        else:
            question = "Please tell me a long story about the sea."
            spoken = client.audio.speech.create(
                model=options.model, voice="alloy", input=question, response_format="pcm"
            )
            sound = spoken.read()
        talk(client, options.model, sound, options.out)
    except (OpenAIError, OSError, WebSocketException) as error:
        sys.exit(f"{options.url}: {error}")


if __name__ == "__main__":
    main()
