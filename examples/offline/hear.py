"""Ask a question by voice: a stage of the pipeline writes down what is said, the next one answers.

    python hear.py question.wav --out answer.wav

Without a file the pipeline itself speaks a question first.
"""

import argparse
import sys

from antiphon import AntiphonError, Omni


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask a question by voice.")
    parser.add_argument("file", nargs="?", help="a WAV file; default: one is made, question.wav")
    parser.add_argument("--out", default="answer.wav", metavar="FILE")
    parser.add_argument("--pipeline", default="voice")
    options = parser.parse_args()

    try:
        with Omni(options.pipeline) as omni:
            file = options.file
            if file is None:
                file = omni.say("What is the capital of France?").save("question.wav")
            reply = omni.chat(audio=file, modalities=("transcript", "text", "audio"))
            print(f"Heard: {reply.transcript.strip()}")
            print(reply.text)
            print(f"{reply.timings.audio_s:.1f} s of speech are in {reply.save(options.out)}.")
    except AntiphonError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
