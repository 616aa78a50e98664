"""Ask a question, in text or as a sound, and get the answer in text and speech.

antiphon serve                      # in another terminal
pip install openai
python chat.py "What is the capital of France?"
python chat.py --audio question.wav --out answer.wav
"""

import argparse
import base64
import os
import sys
from pathlib import Path

from openai import OpenAI, OpenAIError


def ask(client: OpenAI, model: str, content: list[dict], out: Path) -> None:
    completion = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": content}],
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "wav"},
        max_completion_tokens=60,
    )
    answer = completion.choices[0].message.audio
    print(answer.transcript)
    out.write_bytes(base64.b64decode(answer.data))
    print(f"The speech is in {out}.")


def sound(file: Path) -> dict:
    data = base64.b64encode(file.read_bytes()).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask, and get text and speech.")
    parser.add_argument("question", nargs="?", help="what to ask")
    parser.add_argument("--audio", type=Path, metavar="FILE", help="a question that is spoken")
    parser.add_argument("--out", type=Path, default=Path("answer.wav"), metavar="FILE")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where the server listens")
    parser.add_argument("--model", default="voice")
    options = parser.parse_args()

    key = os.environ.get("ANTIPHON_API_KEY", "none")
    client = OpenAI(base_url=f"{options.url}/v1", api_key=key)
    try:
        content = [sound(options.audio)] if options.audio else []
        if options.question or not content:
            question = options.question or "What is the capital of France?"
            content.append({"type": "text", "text": question})
        ask(client, options.model, content, options.out)
    except OpenAIError as error:
        sys.exit(f"{options.url}: {error}")
    except OSError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
