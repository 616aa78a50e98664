"""See every event of an answer as it comes: the text, and the speech while it is being made.

python stream.py "Name three rivers."
"""

import argparse
import sys

from antiphon import AntiphonError, AudioChunk, Finished, Omni, OmniRequest, TextDelta


def show(omni: Omni, question: str) -> None:
    for event in omni.stream(OmniRequest(text=question)):
        match event:
            case TextDelta(text):
                print(f"text   {text!r}")
            case AudioChunk(samples, sample_rate):
                print(f"speech {len(samples) / sample_rate:.2f} s")
            case Finished(reply):
                times = reply.timings
                print(f"text began after {times.ttft_s:.2f} s, speech after {times.ttfa_s:.2f} s;")
                print(f"{times.audio_s:.1f} s of speech, all there after {times.total_s:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description="See every event of an answer as it comes.")
    parser.add_argument("question", nargs="?", default="What is the capital of France?")
    parser.add_argument("--pipeline", default="voice")
    options = parser.parse_args()

    try:
        with Omni(options.pipeline, entries=["chat"], inputs=["text"]) as omni:
            show(omni, options.question)
    except AntiphonError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
