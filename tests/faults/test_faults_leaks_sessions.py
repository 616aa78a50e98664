"""Sessions without the garbage collector: what a segment has brought goes with its reader."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

import watched
from antiphon.errors import PayloadError
from antiphon.orchestrator.api import AudioChunk, Finished
from antiphon.orchestrator.sessions import Session
from antiphon.stage.messages import Submit
from hand_pipeline import SOUND
from routing import STREAMS, Routing, settle
from watched import alive, cycles, watch


async def speak(routing: Routing, session: Session, text: str) -> str:
    """One segment up to its sound; the uid of the session at the first stage."""
    thinker, talker = routing["thinker"], routing["talker"]
    first = not thinker.sessions
    await session.append(text)
    await settle()
    (unit,) = thinker.sessions
    segment = talker.sent(Submit)[-1].uid
    assert first or thinker.epoch(unit)
    thinker.tokens(unit, 1)
    thinker.ref(unit, "speech")
    thinker.end_segment(unit)
    await settle()
    talker.ref(segment, "codes")
    talker.finish(segment)
    await settle()
    routing["code2wav"].audio(segment, SOUND, None)
    return segment


async def read(session: Session) -> None:
    """Up to the next segment's end."""
    async for event in session:
        match event.event:
            case AudioChunk():
                watch(event.event.samples)
            case Finished():
                watch(event.event.reply.audio)
                return


async def acknowledge(routing: Routing) -> None:
    """All that the stages are told to end has ended."""
    await settle()
    routing.acknowledge_all()
    await settle()


async def finished(routing: Routing, session: Session) -> None:
    for text in ("one", "two"):
        segment = await speak(routing, session, text)
        routing["code2wav"].audio(segment, SOUND)
        await read(session)


async def interrupted(routing: Routing, session: Session) -> None:
    await speak(routing, session, "one")
    interrupting = asyncio.ensure_future(session.interrupt())
    await acknowledge(routing)
    await interrupting
    await read(session)


async def fails(routing: Routing, session: Session) -> None:
    segment = await speak(routing, session, "one")
    routing["code2wav"].fail(segment, PayloadError("corrupt"))
    await acknowledge(routing)
    try:
        await read(session)
    except PayloadError as error:
        watch(error)
    else:
        raise AssertionError("the session has not failed")


async def unread(routing: Routing, session: Session) -> None:
    """It is closed amid a segment, and nobody reads what there is."""
    await speak(routing, session, "one")


Life = Callable[[Routing, Session], Awaitable[None]]
LIVES: tuple[Life, ...] = (finished, interrupted, fails, unread)

# An error that its request keeps, or that is raised where it is kept, holds the request.


async def whole(routing: Routing, life: Life) -> None:
    """One session from its beginning to its end."""
    session = routing.session(entry="chat", modalities=("audio",))
    watch(session)
    await session.__aenter__()
    await life(routing, session)
    closing = asyncio.ensure_future(session.close())
    await acknowledge(routing)
    await closing
    del session
    routing.assert_empty()


@pytest.fixture
def routing() -> Routing:
    return Routing(STREAMS)


@pytest.fixture
def uncollected() -> Iterator[None]:
    with watched.uncollected():
        yield


@pytest.mark.parametrize(
    "life",
    [finished, interrupted, unread, fails],
    ids=lambda life: life.__name__,
)
async def test_nothing_outlives_its_session(
    routing: Routing, uncollected: None, life: Life
) -> None:
    """C24, C50: neither a session nor what its segments brought is in a cycle."""
    for _ in range(3):
        await whole(routing, life)
        assert alive() == []


async def test_nothing_of_ours_is_in_a_cycle(routing: Routing, uncollected: None) -> None:
    """C50: nor anything small, which would hold on to more one day."""
    with cycles() as found:
        for life in LIVES:
            await whole(routing, life)
    assert found == []
