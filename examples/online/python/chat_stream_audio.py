"""Hear an answer while it is still being written.

The speech is raw: 16-bit little-endian samples of one channel, 24,000 a second. It goes to a file,
or with `--out -` to standard output, for a player; the text goes to standard error.

    antiphon serve                      # in another terminal
    pip install openai
    python chat_stream_audio.py "Why is the sky blue?"
    python chat_stream_audio.py "Why is the sky blue?" --out - | aplay -r 24000 -f S16_LE
"""

import argparse
import base64
import os
import sys
import time
from typing import BinaryIO

from openai import OpenAI, OpenAIError

BYTES_PER_SECOND = 2 * 24_000


def play(client: OpenAI, model: str, question: str, out: BinaryIO) -> None:
    began = time.monotonic()
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "pcm16"},  # the one format for streams
        max_completion_tokens=60,
        stream=True,
    )
    size, first = 0, 0.0
    for chunk in stream:
        audio = chunk.choices[0].delta.audio if chunk.choices else None
        if audio is None:
            continue
        if audio.transcript:
            print(audio.transcript, end="", flush=True, file=sys.stderr)
        if audio.data:
            first = first or time.monotonic() - began
            samples = base64.b64decode(audio.data)
            out.write(samples)
            out.flush()
            size += len(samples)
    seconds = size / BYTES_PER_SECOND
    print(f"\n{seconds:.1f} s of speech, the first after {first:.2f} s", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description="Hear an answer while it is being written.")
    parser.add_argument("question", nargs="?", default="What is the capital of France?")
    parser.add_argument("--out", default="answer.pcm", metavar="FILE", help="- is standard output")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where the server listens")
    parser.add_argument("--model", default="voice")
    options = parser.parse_args()

    key = os.environ.get("ANTIPHON_API_KEY", "none")
    client = OpenAI(base_url=f"{options.url}/v1", api_key=key)
    try:
        with open(sys.stdout.fileno() if options.out == "-" else options.out, "wb") as out:
            play(client, options.model, options.question, out)
    except OpenAIError as error:
        sys.exit(f"{options.url}: {error}")
    except OSError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
