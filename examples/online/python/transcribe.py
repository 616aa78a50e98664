"""Have written down what is said in a file: WAV, MP3, FLAC, Ogg, MP4 and others.

antiphon serve                      # in another terminal
pip install openai
python transcribe.py question.wav
"""

import argparse
import os
import sys
from pathlib import Path

from openai import OpenAI, OpenAIError


def transcribe(client: OpenAI, model: str, file: Path) -> None:
    stream = client.audio.transcriptions.create(model=model, file=file, stream=True)
    for event in stream:
        if event.type == "transcript.text.delta":
            print(event.delta, end="", flush=True)
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description="Have written down what is said in a file.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where the server listens")
    parser.add_argument("--model", default="voice")
    options = parser.parse_args()

    key = os.environ.get("ANTIPHON_API_KEY", "none")
    client = OpenAI(base_url=f"{options.url}/v1", api_key=key)
    try:
        transcribe(client, options.model, options.file)
    except OpenAIError as error:
        sys.exit(f"{options.url}: {error}")
    except OSError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
