"""Hold a conversation and interrupt it; what was said stays in the model's cache.

    python conversation.py --out answer.wav

The first answer is interrupted as soon as it is heard, as by a listener who speaks up. Then a
second question is asked, and answered to its end.
"""

import argparse
import asyncio
import sys

from antiphon import AntiphonError, AsyncOmni, AudioChunk, Finished, Reply, Session, TextDelta


async def listen(session: Session, *, interrupt: bool) -> Reply:
    """Hear what comes until the answer is over, or interrupt it at its first sound."""
    async for item in session:
        match item.event:
            case TextDelta(text):
                print(text, end="", flush=True)
            case AudioChunk() if interrupt:
                # Returns when every stage has let go of the answer; no more of it is heard.
                await session.interrupt()
            case Finished(reply):
                print(f"\n[{reply.finish_reason}, {reply.timings.audio_s:.1f} s of speech]")
                return reply
    raise EOFError("the session has ended")


async def talk(pipeline: str, out: str) -> None:
    omni = AsyncOmni(pipeline, entries=["chat"], inputs=["text"])
    async with omni, omni.session() as session:
        await session.append("Please tell me a long story about the sea.")
        await listen(session, interrupt=True)
        await session.append("What is the capital of France?")
        reply = await listen(session, interrupt=False)
        print(f"The last answer is in {reply.save(out)}.")


def main() -> None:
    parser = argparse.ArgumentParser(description="Hold a conversation, and interrupt it.")
    parser.add_argument("--out", default="answer.wav", metavar="FILE")
    parser.add_argument("--pipeline", default="voice")
    options = parser.parse_args()

    try:
        asyncio.run(talk(options.pipeline, options.out))
    except AntiphonError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
