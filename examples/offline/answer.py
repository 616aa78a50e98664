"""Ask a question and get the answer in text and speech.

    python answer.py "What is the capital of France?" --out answer.wav

Nothing has to be started before: the pipeline runs as long as the program does.
"""

import argparse
import sys

from antiphon import AntiphonError, Omni


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask, and get text and speech.")
    parser.add_argument("question", nargs="?", default="What is the capital of France?")
    parser.add_argument("--out", default="answer.wav", metavar="FILE")
    parser.add_argument("--pipeline", default="voice")
    options = parser.parse_args()

    try:
        # Only stages that an answer to a text needs are started.
        with Omni(options.pipeline, entries=["chat"], inputs=["text"]) as omni:
            reply = omni.chat(options.question)
            print(reply.text)
            print(f"{reply.timings.audio_s:.1f} s of speech are in {reply.save(options.out)}.")
    except AntiphonError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
