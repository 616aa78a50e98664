"""Interruptions at every moment: what is under way ends once, and nothing of it comes after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator

import pytest

from antiphon.core.prompt_plan import UpdateKind
from antiphon.errors import PayloadError, StageDiedError
from antiphon.orchestrator.api import AudioChunk, Finished, SessionEvent, TextDelta
from antiphon.orchestrator.sessions import Session
from antiphon.stage.messages import Abort, Aborted, Interrupt, Submit, Update
from routing import STREAMS, Reader, Routing, segment_uid, session_uid, settle, told

STAGES = ("thinker", "talker", "code2wav")
OLD, FRESH = 0.5, 0.25  # audio of what is interrupted, and of what comes after
Act = Callable[[Session], Coroutine[None, None, object]]


def course(routing: Routing, session: Session) -> Iterator[Coroutine[None, None, object]]:
    """Three segments, step by step: at each moment something else is under way."""

    async def do(call: Callable[[], object]) -> None:
        call()

    thinker, talker, vocoder = (routing[name] for name in STAGES)
    yield session.append("one")
    unit = session_uid(routing)
    zero, one = segment_uid(unit, 0), segment_uid(unit, 1)
    yield do(lambda: thinker.tokens(unit, 1))
    yield do(lambda: thinker.ref(unit, "speech", end=False))
    yield do(lambda: talker.tokens(zero, 1))
    yield do(lambda: talker.ref(zero, "codes", end=False))
    yield session.append("two")
    yield do(lambda: vocoder.audio(zero, [OLD], finish=None))
    yield do(lambda: thinker.end_segment(unit))
    yield do(lambda: thinker.ref(unit, "speech", epoch=0))
    yield do(lambda: thinker.tokens(unit, 2))
    yield do(lambda: talker.finish(zero))
    yield session.append("three")
    yield do(lambda: thinker.ref(unit, "speech", end=False))
    yield do(lambda: talker.ref(zero, "codes", epoch=0))
    yield do(lambda: vocoder.audio(zero, [OLD]))
    yield do(lambda: talker.tokens(one, 1))
    yield do(lambda: talker.ref(one, "codes", end=False))
    yield do(lambda: vocoder.audio(one, [OLD], finish=None))


NUM_STEPS = 18


async def play(routing: Routing, session: Session, num_steps: int) -> None:
    steps = course(routing, session)
    for _ in range(num_steps):
        await next(steps)


def go_on(routing: Routing, unit: str) -> None:
    """Every stage does something more for what it holds."""
    session = routing["thinker"].sessions.get(unit)
    if session is not None and not session.resting:
        routing["thinker"].tokens(unit, 5)
        routing["thinker"].ref(unit, "speech", end=False)
    for name, edge in (("talker", "codes"), ("code2wav", "")):
        for uid in sorted(routing[name].live.keys() - routing[name].waiting):
            if edge:
                routing[name].ref(uid, edge, end=False)
            else:
                routing[name].audio(uid, [OLD], finish=None)


async def whole_turn(routing: Routing, unit: str, number: int) -> None:
    """A segment that has begun happens from its beginning to its end."""
    spoken = segment_uid(unit, number)
    routing["thinker"].tokens(unit, 4)
    routing["thinker"].ref(unit, "speech")
    routing["talker"].ref(spoken, "codes")
    routing["code2wav"].audio(spoken, [FRESH])
    routing["talker"].finish(spoken)
    routing["thinker"].end_segment(unit)


def reasons(events: list[SessionEvent]) -> dict[int, str]:
    found = [(e.segment, e.event.reply.finish_reason) for e in events if is_end(e)]
    assert len(dict(found)) == len(found), "a segment has ended twice"
    return dict(found)


def is_end(event: SessionEvent) -> bool:
    return isinstance(event.event, Finished)


async def interrupt(session: Session) -> None:
    await session.interrupt()


async def replace(session: Session) -> None:
    await session.replace("six")


def test_the_course_has_so_many_steps() -> None:
    async def count() -> int:
        routing = Routing(STREAMS)
        async with routing.conversation() as session:
            steps = [await step for step in course(routing, session)]
        return len(steps)

    assert asyncio.run(count()) == NUM_STEPS


@pytest.mark.parametrize("act", [interrupt, replace])
@pytest.mark.parametrize("read_before", [True, False])
@pytest.mark.parametrize("moment", range(NUM_STEPS + 1))
async def test_an_interruption_ends_what_is_under_way_and_nothing_comes_after(
    act: Act, read_before: bool, moment: int
) -> None:
    """C97, C67: cancelled once on every stage, nothing stale after, the next segment is as ever."""
    routing = Routing(STREAMS)
    async with routing.conversation() as session:
        reader = Reader(session)
        await play(routing, session, moment)
        before = await reader.new() if read_before else []
        unit = session_uid(routing) if moment else ""
        writing = bool(unit) and not routing["thinker"].sessions[unit].resting
        spoken = bool(routing["talker"].live or routing["code2wav"].live)
        acting = asyncio.create_task(act(session))
        abort = asyncio.create_task(told(routing["talker"], Abort))
        await asyncio.wait({acting, abort}, return_when=asyncio.FIRST_COMPLETED)
        abort.cancel()
        go_on(routing, unit)
        for name in STAGES:
            routing[name].acknowledge()
        await acting
        after = await reader.new()
        assert {type(e.event) for e in after} <= {Finished}
        ended = reasons(before + after)
        assert list(ended) == sorted(ended)
        if read_before:
            assert set(reasons(after).values()) <= {"interrupt"}
        assert len(routing["thinker"].sent(Interrupt)) == writing
        assert routing["thinker"].sent(Abort) == []
        for name in ("talker", "code2wav"):
            assert len(routing[name].sent(Abort)) == spoken

        number = len(ended) if act is replace else await session.append("four")
        assert number == len(ended)
        for epoch in range(number if moment else 0):
            routing["thinker"].tokens(unit, 6, epoch=epoch)
            routing["thinker"].ref(unit, "speech", epoch=epoch, end=False)
        await whole_turn(routing, session_uid(routing), number)
        last = await reader.new()
        assert [(e.segment, type(e.event)) for e in last] == [
            (number, TextDelta),
            (number, AudioChunk),
            (number, Finished),
        ]
        end = last[-1].event
        assert isinstance(end, Finished)
        assert (end.reply.text, end.reply.finish_reason) == ("four", "stop")
    routing.assert_empty()


async def test_the_reply_of_an_interrupted_segment_has_all_that_was_made() -> None:
    """C97, C113: also the text that came between the call and the answer, since the model's history
    has it; of the sound what had come before.
    """
    routing = Routing(STREAMS)
    async with routing.conversation() as session:
        reader = Reader(session)
        await play(routing, session, 9)  # segment 0 is spoken, 1 has just begun
        acting = asyncio.create_task(session.interrupt())
        await settle()
        go_on(routing, session_uid(routing))
        routing.acknowledge_all()
        await acting
        first, second = await reader.new()
        assert isinstance(first.event, Finished)
        assert isinstance(second.event, Finished)
        assert (first.event.reply.text, second.event.reply.text) == ("one", "five")
        assert first.event.reply.audio is not None
        assert first.event.reply.audio.tolist() == [OLD]
        assert second.event.reply.audio is None


async def test_an_interruption_waits_for_every_stage() -> None:
    routing = Routing(STREAMS)
    async with routing.conversation() as session:
        reader = Reader(session)
        await play(routing, session, 5)
        acting = asyncio.create_task(session.interrupt())
        for answer in (
            routing["code2wav"].acknowledge,
            routing["thinker"].interrupt,
            routing["talker"].acknowledge,
        ):
            await settle()
            assert not acting.done()
            assert await reader.new() == []
            answer()
        await acting
        assert reasons(await reader.new()) == {0: "interrupt"}


async def test_only_what_is_under_way_is_told() -> None:
    """Segment 0 is still spoken, and the thinker rests: it has nothing to end."""
    routing = Routing(STREAMS)
    async with routing.conversation() as session:
        await session.append("one")
        unit = session_uid(routing)
        routing["thinker"].ref(unit, "speech")
        routing["thinker"].end_segment(unit)
        acting = asyncio.create_task(session.interrupt())
        await settle()
        assert routing["thinker"].sent(Interrupt) == []
        assert [a.uids for a in routing["talker"].sent(Abort)] == [[segment_uid(unit, 0)]]
        routing.acknowledge_all()
        await acting


async def test_a_segment_that_ends_before_the_interruption_reaches_it_counts_once() -> None:
    """Both messages are on their way at the same time."""
    routing = Routing()
    async with routing.conversation(modalities=("text",)) as session:
        reader = Reader(session)
        await session.append("one")
        unit = session_uid(routing)
        acting = asyncio.create_task(session.interrupt())
        await settle()
        routing["thinker"].tokens(unit, 1)
        routing["thinker"].end_segment(unit)
        routing["thinker"].interrupt()
        await acting
        (event,) = await reader.new()
        assert isinstance(event.event, Finished)
        assert event.event.reply.text == "one"
        assert await session.append("two") == 1
        assert [u.epoch for u in routing["thinker"].sent(Update)] == [1]
    routing.assert_empty()


async def test_segments_that_have_not_begun_are_dropped() -> None:
    """C67: no stage ever hears of them, and the next one is accepted."""
    routing = Routing()
    async with routing.conversation(modalities=("text",)) as session:
        reader = Reader(session)
        for word in ("one", "two", "three"):
            await session.append(word)
        acting = asyncio.create_task(session.interrupt())
        await settle()
        routing.acknowledge_all()
        await acting
        assert reasons(await reader.new()) == dict.fromkeys(range(3), "interrupt")
        await session.append("four")
        (update,) = routing["thinker"].sent(Update)
        assert (update.epoch, update.token_ids) == (3, [7, 4])


async def test_what_is_said_during_an_interruption_begins_after_it() -> None:
    routing = Routing(STREAMS)
    async with routing.conversation() as session:
        reader = Reader(session)
        await session.append("one")
        acting = asyncio.create_task(session.interrupt())
        await settle()
        assert await session.append("two") == 1
        routing["thinker"].interrupt()
        assert routing["thinker"].sent(Update) == []
        routing.acknowledge_all()
        await acting
        assert [u.epoch for u in routing["thinker"].sent(Update)] == [1]
        assert reasons(await reader.new()) == {0: "interrupt"}


async def test_a_second_interruption_ends_what_was_said_during_the_first() -> None:
    routing = Routing(STREAMS)
    async with routing.conversation() as session:
        reader = Reader(session)
        await session.append("one")
        acts = [asyncio.create_task(session.interrupt())]
        await settle()
        await session.append("two")
        acts.append(asyncio.create_task(session.interrupt()))
        await settle()
        assert len(routing["thinker"].sent(Interrupt)) == 1
        assert reasons(await reader.new()) == {1: "interrupt"}
        assert await session.append("three") == 2
        assert routing["thinker"].sent(Update) == []  # the first is still being ended
        routing.acknowledge_all()
        await asyncio.gather(*acts)
        assert reasons(await reader.new()) == {0: "interrupt"}
        assert [u.epoch for u in routing["thinker"].sent(Update)] == [2]


async def test_an_interruption_of_nothing_returns_at_once() -> None:
    routing = Routing(STREAMS)
    async with routing.conversation() as session:
        await session.interrupt()
        assert await session.append("one") == 0
        assert len(routing["thinker"].sent(Submit)) == 1


async def test_a_replacement_begins_the_conversation_anew() -> None:
    """With the messages that the session was opened with, and after all older ones have ended."""
    routing = Routing(STREAMS)
    async with routing.conversation(messages=[{"role": "system", "content": "five"}]) as session:
        await session.append("one")
        replacing = asyncio.create_task(session.replace("two"))
        await told(routing["thinker"], Interrupt)
        assert routing["thinker"].sent(Update) == []
        routing.acknowledge_all()
        assert await replacing == 1
        (update,) = routing["thinker"].sent(Update)
        assert (update.kind, update.token_ids) == (UpdateKind.REPLACE, [0, 5, 2])


async def test_an_error_during_an_interruption_ends_the_session_once() -> None:
    """The interrupted segment keeps its own outcome; the error is the session's."""
    routing = Routing(STREAMS)
    async with routing.conversation() as session:
        reader = Reader(session)
        await session.append("one")
        acting = asyncio.create_task(session.interrupt())
        await settle()
        routing["talker"].fail(segment_uid(session_uid(routing), 0), PayloadError("too late"))
        routing["thinker"].fail(session_uid(routing), PayloadError("corrupt"))
        routing.acknowledge_all()
        await acting
        assert reasons(await reader.new()) == {0: "interrupt"}
        assert str(reader.error) == "corrupt"
        assert reader.ended
    routing.assert_empty()


@pytest.mark.parametrize("stage", STAGES)
async def test_a_stage_that_dies_during_an_interruption_owes_no_answer(stage: str) -> None:
    routing = Routing(STREAMS)
    async with routing.conversation() as session:
        reader = Reader(session)
        await play(routing, session, 5)
        acting = asyncio.create_task(session.interrupt())
        await settle()
        for name in STAGES:
            if name != stage:
                routing[name].acknowledge()
        routing[stage].die()
        routing.acknowledge_all()
        await acting
        assert set(reasons(await reader.new())) <= {0}
        assert isinstance(reader.error, StageDiedError)
    assert len(routing.router) == 0


async def test_closing_during_an_interruption_ends_each_segment_once() -> None:
    routing = Routing(STREAMS)
    async with routing.conversation() as session:
        reader = Reader(session)
        await session.append("one")
        acting = asyncio.create_task(session.interrupt())
        await settle()
        await session.append("two")
        closing = asyncio.create_task(session.close())
        await settle()
        routing.acknowledge_all()
        await asyncio.gather(acting, closing)
        assert reasons(await reader.new()) == {0: "interrupt", 1: "abort"}
        assert reader.ended
    routing.assert_empty()


async def test_answers_out_of_order_end_a_segment_once() -> None:
    """The word that the session is gone comes before the word that its segment is."""
    routing = Routing()
    async with routing.conversation(modalities=("text",)) as session:
        reader = Reader(session)
        await session.append("one")
        tasks = [asyncio.create_task(session.interrupt())]
        await settle()
        tasks.append(asyncio.create_task(session.close()))
        await settle()
        (abort,) = routing["thinker"].pending_aborts
        routing["thinker"].emit(Aborted(abort.uids, abort.token))
        routing.acknowledge_all()
        await asyncio.gather(*tasks)
        assert reasons(await reader.new()) == {0: "abort"}
        assert reader.ended
    routing.assert_empty()
