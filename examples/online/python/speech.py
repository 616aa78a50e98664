"""Have a text spoken. The file grows while the speech is being made.

antiphon serve                      # in another terminal
pip install openai
python speech.py "The train leaves at seven." --out train.wav
python speech.py "The train leaves at seven." --out train.mp3
"""

import argparse
import os
import sys
import time
from pathlib import Path

from openai import OpenAI, OpenAIError


def speak(client: OpenAI, model: str, text: str, out: Path) -> None:
    began = time.monotonic()
    with client.audio.speech.with_streaming_response.create(
        model=model,
        voice="alloy",
        input=text,
        response_format=out.suffix.removeprefix("."),  # wav, mp3, flac, opus, aac, pcm
    ) as response:
        print(f"It begins after {time.monotonic() - began:.2f} s.")
        response.stream_to_file(out)
    print(f"The speech is in {out}, whole after {time.monotonic() - began:.2f} s.")


def main() -> None:
    parser = argparse.ArgumentParser(description="Have a text spoken.")
    parser.add_argument("text", nargs="?", default="The train leaves at seven.")
    parser.add_argument(
        "--out", type=Path, default=Path("speech.wav"), metavar="FILE", help="its ending says how"
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where the server listens")
    parser.add_argument("--model", default="voice")
    options = parser.parse_args()

    key = os.environ.get("ANTIPHON_API_KEY", "none")
    client = OpenAI(base_url=f"{options.url}/v1", api_key=key)
    try:
        speak(client, options.model, options.text, options.out)
    except OpenAIError as error:
        sys.exit(f"{options.url}: {error}")
    except OSError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
