"""A conversation whose history stays in the model, on the real voice pipeline."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
from test_voice import EMPTY, idle

from antiphon import AsyncOmni, AudioChunk, Finished, OmniRequest, Session, TextDelta
from antiphon.errors import InputTooLongError, InvalidRequestError
from antiphon.orchestrator.api import SessionEvent

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(400)]

CAPITAL = "What is the capital of France?"


async def until_finished(session: Session, segment: int) -> list[SessionEvent]:
    """The events up to the end of this segment."""
    events = []
    async for event in session:
        events.append(event)
        if event.segment == segment and isinstance(event.event, Finished):
            break
    return events


def finished(events: list[SessionEvent]) -> Finished:
    last = events[-1].event
    assert isinstance(last, Finished)
    return last


async def test_a_conversation_goes_on(voice: AsyncOmni) -> None:
    """The second answer is that of a request with the whole conversation as its messages."""
    async with voice.session() as session:
        assert await session.append(CAPITAL) == 0
        first = finished(await until_finished(session, 0)).reply
        assert first.text == "The capital of France is Paris."
        assert first.audio is not None
        assert await session.append("And of Italy?") == 1
        second = finished(await until_finished(session, 1)).reply
    messages = [
        {"role": "user", "content": CAPITAL},
        {"role": "assistant", "content": first.text},
    ]
    whole = await voice.generate(OmniRequest(messages=messages, text="And of Italy?"))
    assert second.text == whole.text
    assert second.audio is not None
    assert whole.audio is not None
    assert second.audio.shape == whole.audio.shape
    assert await idle(voice) == EMPTY


async def test_barge_in(voice: AsyncOmni) -> None:
    """C97: after the interruption nothing of the old segment is heard; its text stays history."""
    async with voice.session() as session:
        await session.append("Tell me about the ocean.")
        async for event in session:
            if isinstance(event.event, AudioChunk):
                break
        await session.interrupt()
        await session.append(CAPITAL)
        later = await until_finished(session, 1)
        old = [event.event for event in later if event.segment == 0]
        (end,) = old  # its one outcome, with what had been made
        assert isinstance(end, Finished)
        assert end.reply.finish_reason == "interrupt"
        assert end.reply.text.startswith("The ocean is")
        assert end.reply.audio is not None
        assert finished(later).reply.text
    assert await idle(voice) == EMPTY


async def first_sound(session: Session, segment: int) -> float:
    """The moment of a segment's first sound."""
    async for event in session:
        if event.segment == segment and isinstance(event.event, AudioChunk):
            return time.monotonic()
    raise AssertionError("it was never heard")


@pytest.mark.slow
async def test_an_interruption_is_quick_and_costs_the_next_turn_nothing(voice: AsyncOmni) -> None:
    """C97: all stages have let go within a quarter of a second, and the same question is answered
    as soon as without one. The better of two rounds: others may use the machine.
    """
    cancels, quiet, interrupted = [], [], []
    for _ in range(2):
        async with voice.session() as session:
            asked = time.monotonic()
            await session.append(CAPITAL)
            quiet.append(await first_sound(session, 0) - asked)
        async with voice.session() as session:
            await session.append("Tell me about the ocean.")
            cut = await first_sound(session, 0)
            await session.interrupt()
            asked = time.monotonic()
            cancels.append(asked - cut)
            number = await session.replace(CAPITAL)
            interrupted.append(await first_sound(session, number) - asked)
    assert min(cancels) < 0.25
    assert min(interrupted) < 1.2 * min(quiet), (interrupted, quiet)
    assert await idle(voice) == EMPTY


async def test_replace_begins_anew(voice: AsyncOmni) -> None:
    async with voice.session(modalities=("text",)) as session:
        await session.append("Tell me about the ocean.")
        number = await session.replace(CAPITAL)
        events = await until_finished(session, number)
        assert finished(events).reply.text == "The capital of France is Paris."
    assert await idle(voice) == EMPTY


async def test_segments_mix_but_sound_in_order(voice: AsyncOmni) -> None:
    """Two turns at once: each segment's audio is its own."""
    async with voice.session() as session:
        await session.append(CAPITAL)
        await session.append("What is water?")
        events = await until_finished(session, 1)
    for segment in (0, 1):
        own = [event.event for event in events if event.segment == segment]
        end = own[-1]
        assert isinstance(end, Finished)
        chunks = [event.samples for event in own if isinstance(event, AudioChunk)]
        assert end.reply.audio is not None
        assert np.array_equal(np.concatenate(chunks), end.reply.audio)
        assert "".join(e.text for e in own if isinstance(e, TextDelta)) == end.reply.text
    assert await idle(voice) == EMPTY


async def test_a_conversation_that_outgrows_the_model_ends(voice: AsyncOmni) -> None:
    async with voice.session(modalities=("text",)) as session:
        await session.append(CAPITAL)
        await until_finished(session, 0)
        await session.append("word " * 3000)
        with pytest.raises(InputTooLongError):
            await until_finished(session, 1)
    assert await idle(voice) == EMPTY


async def test_a_session_that_is_left_leaves_nothing(voice: AsyncOmni) -> None:
    """C67: closed in the middle; the next one starts."""
    async with voice.session() as session:
        await session.append("Tell me about the ocean.")
        async for event in session:
            if isinstance(event.event, TextDelta):
                break
    assert await idle(voice) == EMPTY
    async with voice.session(modalities=("text",)) as session:
        await session.append(CAPITAL)
        assert finished(await until_finished(session, 0)).reply.text


async def test_speech_has_no_sessions(voice: AsyncOmni) -> None:
    """An entry that cannot continue says so."""
    with pytest.raises(InvalidRequestError):
        async with voice.session(entry="speech", modalities=("audio",)) as session:
            await session.append("Good morning.")


async def test_sessions_and_requests_run_side_by_side(voice: AsyncOmni) -> None:
    async with voice.session(modalities=("text",)) as session:
        await session.append(CAPITAL)
        reply, events = await asyncio.gather(
            voice.generate(OmniRequest(text=CAPITAL)), until_finished(session, 0)
        )
        assert reply.text == finished(events).reply.text
    assert await idle(voice) == EMPTY
