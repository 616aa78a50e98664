"""Ask several questions at once; each stage works on all of them in one batch.

    python several_at_once.py "Name three rivers." "What is a volcano?"

Each stage samples as it is told: here the thinker draws, with a seed of each question's own, and is
stopped after 40 tokens, while the talker always takes the likeliest token.
"""

import argparse
import asyncio
import sys

from antiphon import AntiphonError, AsyncOmni, OmniRequest, Reply

QUESTIONS = ("What is the capital of France?", "Name three rivers.", "What is a volcano?")


async def ask(omni: AsyncOmni, question: str, seed: int) -> Reply:
    sampling = {
        "thinker": {"temperature": 0.7, "top_p": 0.9, "seed": seed, "max_tokens": 40},
        "talker": {"temperature": 0.0},
    }
    return await omni.generate(OmniRequest(text=question, sampling=sampling))


async def ask_all(questions: list[str]) -> None:
    async with AsyncOmni("voice", entries=["chat"], inputs=["text"]) as omni:
        asked = [ask(omni, question, seed) for seed, question in enumerate(questions)]
        replies = await asyncio.gather(*asked, return_exceptions=True)
    for number, (question, reply) in enumerate(zip(questions, replies, strict=True), 1):
        print(f"{number}. {question}")
        if isinstance(reply, AntiphonError):  # of this question alone
            print(f"   failed: {reply}")
        elif isinstance(reply, BaseException):
            raise reply
        else:
            print(f"   {reply.text}")
            file = reply.save(f"answer-{number}.wav")
            print(f"   {reply.timings.audio_s:.1f} s of speech in {file}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask several questions at once.")
    parser.add_argument("questions", nargs="*", default=QUESTIONS)
    options = parser.parse_args()

    try:
        asyncio.run(ask_all(options.questions))
    except AntiphonError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
