"""A pipeline that goes on at another engine behind a comma; run as a program, in this one process.

Prints one JSON object: by question, what the second engine wrote.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

from antiphon import AsyncOmni, OmniRequest
from antiphon.core.kv_handoff import KvTransfer
from antiphon.models.split.topology import DECODE, PREFILL
from antiphon.models.split.topology import TOPOLOGY as SPLIT
from antiphon.models.voice.topology import THINKER
from antiphon.models.voice.weights import thinker_checkpoint
from antiphon.pipeline.detokenize import load_tokenizer
from antiphon.pipeline.topology import Topology

MARK = ","
QUESTIONS = (
    "Name three colours.",
    "Tell me about the ocean.",
    "Name three rivers.",
    "What do cats eat?",
    "Describe a forest.",
    "Name three cities.",
    "What is in a salad?",
    "Why is the sky blue?",
)


AFTER_THE_MARK = "antiphon.models.kv_adapters:CacheAndTokenInput"


def topology() -> Topology:
    """As `split`, but the first stage writes up to the mark, which is part of its answer."""
    (mark,) = load_tokenizer(thinker_checkpoint()).encode(MARK, add_special_tokens=False).ids
    (edge,) = SPLIT.edges
    edge = replace(edge, kv=KvTransfer("special_token", mark), input_adapter=AFTER_THE_MARK)
    writer = replace(PREFILL, sampling=THINKER.sampling)
    return replace(SPLIT, name="marked", stages=(writer, DECODE), edges=(edge,))


async def rests(omni: AsyncOmni) -> dict[str, str]:
    """What the second stage writes: for each question alone, and for all at once."""
    alone = [(await omni.generate(OmniRequest(text=text))).text for text in QUESTIONS]
    replies = (omni.generate(OmniRequest(text=text)) for text in QUESTIONS)
    together = [reply.text for reply in await asyncio.gather(*replies)]
    assert alone == together
    return dict(zip(QUESTIONS, alone, strict=True))


async def main() -> None:
    async with AsyncOmni(topology(), in_process=True) as omni:
        print(json.dumps(await rests(omni)))


if __name__ == "__main__":
    asyncio.run(main())
