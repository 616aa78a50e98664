"""Thousands of requests with 1 MiB of sound each, without the garbage collector: nothing stays.

The real pipeline object and router over stages that the test drives by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

import watched
from antiphon import OmniRequest
from antiphon.errors import AntiphonError, DeadlineExceededError, PayloadError, StageError
from antiphon.orchestrator.api import AudioChunk, Finished
from hand_pipeline import SOUND_BYTES, HandPipeline
from memory import Resident
from watched import alive, cycles, watch

REQUESTS = 2000


async def heard(pipeline: HandPipeline, **given: object) -> str:
    """Read a request to its end; its finish reason, or the code of its error."""
    request = OmniRequest(entry="speech", text="hello", **given)
    try:
        async with contextlib.aclosing(pipeline.omni.stream(request)) as events:
            async for event in events:
                match event:
                    case AudioChunk():
                        watch(event.samples)
                    case Finished():
                        watch(event.reply.audio)
                        return event.reply.finish_reason
    except AntiphonError as error:
        watch(error)
        return error.code
    raise AssertionError("the stream ended without an outcome")


async def finished(pipeline: HandPipeline) -> None:
    reading = asyncio.ensure_future(heard(pipeline))
    uid = await pipeline.begun()
    await pipeline.codes(uid)
    await pipeline.sound(uid, None)
    await pipeline.sound(uid, "stop")
    assert await reading == "stop"


async def fails(pipeline: HandPipeline) -> None:
    """A stage reports an error after some sound."""
    reading = asyncio.ensure_future(heard(pipeline))
    uid = await pipeline.begun()
    await pipeline.codes(uid)
    await pipeline.sound(uid, None)
    pipeline.stages["code2wav"].fail(uid, PayloadError("corrupt"))
    await pipeline.acknowledge("talker", "code2wav")
    assert await reading == PayloadError.code


async def misbehaves(pipeline: HandPipeline) -> None:
    """A stage reports what cannot be."""
    reading = asyncio.ensure_future(heard(pipeline))
    uid = await pipeline.begun()
    await pipeline.sound(uid, None)
    pipeline.stages["code2wav"].finish(uid, "nonsense")
    await pipeline.acknowledge("talker", "code2wav")
    assert await reading == StageError.code


async def aborted(pipeline: HandPipeline) -> None:
    """By its id."""
    reading = asyncio.ensure_future(heard(pipeline, request_id="mine"))
    uid = await pipeline.begun()
    await pipeline.codes(uid)
    await pipeline.sound(uid, None)
    aborting = asyncio.ensure_future(pipeline.omni.abort("mine"))
    await pipeline.acknowledge("talker", "code2wav")
    assert await aborting
    assert await reading == "abort"


async def left(pipeline: HandPipeline) -> None:
    """Its reader is cancelled."""
    reading = asyncio.ensure_future(heard(pipeline))
    uid = await pipeline.begun()
    await pipeline.sound(uid, None)
    reading.cancel()
    await pipeline.acknowledge("talker", "code2wav")
    with pytest.raises(asyncio.CancelledError):
        await reading


async def late(pipeline: HandPipeline) -> None:
    """It takes longer than it may."""
    reading = asyncio.ensure_future(heard(pipeline, deadline_s=0.1))
    uid = await pipeline.begun()
    await pipeline.sound(uid, None)
    await pipeline.acknowledge("talker", "code2wav")
    assert await reading == DeadlineExceededError.code


Life = Callable[[HandPipeline], Awaitable[None]]
LIVES: tuple[Life, ...] = (finished, fails, misbehaves, aborted, left)

# An error that its request keeps, or that is raised where it is kept, holds the request.


@pytest.fixture
async def pipeline() -> AsyncIterator[HandPipeline]:
    made = HandPipeline()
    async with made.omni:
        yield made


@pytest.fixture
def uncollected() -> Iterator[None]:
    with watched.uncollected():
        yield


@pytest.mark.parametrize(
    "life",
    [finished, aborted, left, fails, misbehaves, late],
    ids=lambda life: life.__name__,
)
async def test_nothing_outlives_its_request(
    pipeline: HandPipeline, uncollected: None, life: Life
) -> None:
    """C50: what a request has brought is in no cycle with it."""
    for _ in range(3):
        await life(pipeline)
        await pipeline.assert_empty()
        assert alive() == []


async def test_nothing_of_ours_is_in_a_cycle(pipeline: HandPipeline, uncollected: None) -> None:
    """C50: nor anything small, which would hold on to more one day."""
    with cycles() as found:
        for life in LIVES:
            await life(pipeline)
            await pipeline.assert_empty()
    assert found == []


async def test_memory_is_flat(pipeline: HandPipeline, uncollected: None) -> None:
    """C24, C25, C50: 2,000 requests with 1 MiB and more that finish, fail and are aborted."""
    memory = Resident(REQUESTS)
    for number in range(REQUESTS):
        await LIVES[number % len(LIVES)](pipeline)
        await pipeline.assert_empty()
        memory.note()
    assert alive() == []
    assert memory.growth < 4 * SOUND_BYTES
