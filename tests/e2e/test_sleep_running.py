"""The whole voice pipeline sleeps and wakes while it is in use (C55, C123)."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from antiphon import AsyncOmni, AudioChunk, Finished, OmniRequest, Reply
from antiphon.errors import DeadlineExceededError, InvalidRequestError
from held import EMPTY, STAGES, idle

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(400)]

LONG = OmniRequest(text="Tell me about the ocean.", sampling={"thinker": {"max_tokens": 32}})
SHORT = OmniRequest(text="What is the capital of France?")
PATIENCE_S = 120.0  # for a whole answer, on a machine that is busy with others


async def test_a_pipeline_sleeps_in_the_middle_of_answers(voice: AsyncOmni) -> None:
    """No stage waits for another one; what had begun and what arrives meanwhile is answered after
    it, with the sound that it would have had.
    """
    expected = [await voice.generate(LONG), await voice.generate(SHORT)]
    heard = asyncio.Event()

    async def listen() -> Reply:
        async for event in voice.stream(LONG):
            if isinstance(event, AudioChunk):
                heard.set()
            if isinstance(event, Finished):
                return event.reply
        raise AssertionError("the stream has no end")

    async with asyncio.timeout(PATIENCE_S):
        first = asyncio.create_task(listen())
        await heard.wait()
        slept = await asyncio.gather(voice.sleep(1), voice.sleep(2))  # twice, as it happens
        assert slept == [dict.fromkeys(STAGES, 0)] * 2
        waiting = asyncio.create_task(voice.generate(SHORT))
        late = OmniRequest(text="Why?", deadline_s=0.3)
        with pytest.raises(DeadlineExceededError):
            await voice.generate(late)
        assert not waiting.done()
        await voice.wake()
        await voice.wake()
        found = [await first, await waiting]
    for reply, wanted in zip(found, expected, strict=True):
        assert reply.text == wanted.text
        assert reply.audio is not None
        assert wanted.audio is not None
        assert np.array_equal(reply.audio, wanted.audio)
    assert await idle(voice) == EMPTY


async def test_an_abort_is_answered_while_the_pipeline_sleeps(voice: AsyncOmni) -> None:
    """C55, C66: nobody has to wake for it."""
    async with asyncio.timeout(PATIENCE_S):
        await voice.sleep()
        request = OmniRequest(text="Why is the sky blue?", request_id="asleep")
        waiting = asyncio.create_task(voice.generate(request))
        await voice.inspect()
        await voice.abort("asleep")
        reply = await waiting
        assert (reply.text, reply.finish_reason) == ("", "abort")
        await voice.wake()
    assert await idle(voice) == EMPTY


async def test_what_makes_no_sense_is_the_callers_error(voice: AsyncOmni) -> None:
    with pytest.raises(InvalidRequestError, match="no sleep level 3"):
        await voice.sleep(3)
    with pytest.raises(InvalidRequestError, match="no memory 'nonsense'"):
        await voice.wake(["nonsense"])
    assert (await voice.generate(SHORT)).text == "The capital of France is Paris."
