"""The shipped fake answers by itself, so that routing can be tried without an engine."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.core.prompt_plan import UpdateKind
from antiphon.orchestrator.api import Finished
from antiphon.stage.messages import (
    Acknowledged,
    Discard,
    Event,
    Inspect,
    Inspection,
    Sleep,
    Step,
    Submit,
    Update,
    Used,
)
from antiphon.testing.fake_stage import Answer, FakeStage
from routing import STREAMS, Reader, Routing, drain, reply_of, settle, uid

ANSWERS = {
    "thinker": Answer(token_ids=(1, 2), parts=2),
    "talker": Answer(token_ids=(7, 7, 7)),
    "code2wav": Answer(samples=(0.25, 0.5)),
}
SAID = Answer(token_ids=(1,))


async def test_an_automatic_pipeline_answers() -> None:
    routing = Routing(answers=ANSWERS)
    live = routing.submit()
    await live.ended.wait()
    reply = reply_of(drain(live))
    assert reply.text == "one two"
    assert reply.audio is not None
    assert reply.audio.tolist() == [0.25, 0.5, 0.25, 0.5]  # two parts
    assert reply.timings.stages["talker"].tokens == 6
    routing.assert_empty()


async def test_an_automatic_stage_passes_an_empty_end_on() -> None:
    """C115: a thinker with nothing to say ends the whole pipeline at once."""
    routing = Routing(answers={**ANSWERS, "thinker": Answer(token_ids=(1,), parts=0)})
    live = routing.submit()
    await live.ended.wait()
    assert reply_of(drain(live)).audio is None
    routing.assert_empty()


async def test_an_automatic_stage_acknowledges_an_abort() -> None:
    routing = Routing(answers=ANSWERS)
    live = routing.submit()
    await routing.router.abort(live)
    assert reply_of(drain(live)).finish_reason == "abort"
    await settle()
    routing.assert_empty()


async def test_administration_is_answered_after_the_call() -> None:
    heard: list[Event] = []
    stage = FakeStage("one", lambda _, event, __: heard.append(event), lambda *_: None)
    stage.send(Sleep(level=1, token=3))
    stage.send(Inspect(4))
    assert heard == []
    await asyncio.sleep(0)
    asleep, seen = heard
    assert asleep == Acknowledged(3)
    assert isinstance(seen, Inspection)
    assert (seen.token, seen.requests) == (4, 0)


async def test_a_stage_that_is_gone_says_and_hears_nothing() -> None:
    routing = Routing()
    live = routing.submit(modalities=("text",))
    routing["thinker"].die()
    drain(live)
    routing["thinker"].tokens(uid(live), 1)
    routing["thinker"].send(Submit("x", [1], {}))
    assert drain(live) == []
    assert routing["thinker"].live == {}


async def test_a_uid_given_twice_is_the_routers_fault() -> None:
    stage = FakeStage("one", lambda *_: None, lambda *_: None)
    stage.send(Submit("x", [1], {}))
    with pytest.raises(AssertionError, match="twice"):
        stage.send(Submit("x", [1], {}))


async def test_an_automatic_pipeline_answers_a_stream() -> None:
    routing = Routing(STREAMS, ANSWERS)
    live = routing.submit()
    await live.ended.wait()
    reply = reply_of(drain(live))
    assert reply.audio is not None
    assert reply.audio.tolist() == [0.25, 0.5]
    await settle()
    routing.assert_empty()


async def test_an_automatic_pipeline_holds_a_conversation() -> None:
    """One segment after the other, each with its own answer; then nothing is left."""
    routing = Routing(STREAMS, ANSWERS)
    async with routing.session() as session:
        reader = Reader(session)
        for say in (session.append, session.append, session.replace):
            number = await say("one")
            await settle()
            end = (await reader.new())[-1]
            assert end.segment == number
            assert isinstance(end.event, Finished)
            assert end.event.reply.text == "one two"
            assert end.event.reply.audio is not None
    await settle()
    routing.assert_empty()


async def test_an_automatic_pipeline_can_be_interrupted() -> None:
    routing = Routing(STREAMS, ANSWERS)
    async with routing.session() as session:
        reader = Reader(session)
        await session.append("one")
        await session.append("two")
        await session.interrupt()
        ends = [(e.segment, e.event) for e in await reader.new() if isinstance(e.event, Finished)]
        assert [number for number, _ in ends] == [0, 1]
        assert ends[1][1].reply.finish_reason == "interrupt"
        assert await session.append("three") == 2
    await settle()
    routing.assert_empty()


async def test_an_update_of_no_session_is_its_end() -> None:
    heard: list[Event] = []
    stage = FakeStage("one", lambda _, event, __: heard.append(event), lambda *_: None, answer=SAID)
    stage.send(Update("x.0", 1, UpdateKind.EXTEND, [1]))
    await settle()
    (step,) = heard
    assert isinstance(step, Step)
    assert step.outputs[0].finish == "error"


async def test_a_replacement_interrupts_and_drops_what_is_queued() -> None:
    """As a real stage does it, which a router need not rely on."""
    heard: list[Event] = []
    stage = FakeStage("one", lambda _, event, __: heard.append(event), lambda *_: None, answer=SAID)
    stage.send(Submit("x.0", [1], {}, session=True))
    stage.send(Update("x.0", 1, UpdateKind.EXTEND, [1]))
    stage.send(Update("x.0", 2, UpdateKind.REPLACE, [1]))
    await settle()
    outputs = [out for step in heard if isinstance(step, Step) for out in step.outputs]
    assert [out.epoch for out in outputs if out.segment_finish is not None][-1] == 2
    assert 1 not in {out.epoch for out in outputs}


def test_a_chunk_that_is_returned_twice_is_the_routers_fault() -> None:
    stage = FakeStage("one", lambda *_: None, lambda *_: None)
    key = str(stage.ref("x.0", "speech").key)
    stage.send(Used("speech", [key]))
    with pytest.raises(AssertionError, match="twice"):
        stage.send(Discard([key]))


def test_whoever_asked_for_sleep_is_answered_when_the_stage_sleeps() -> None:
    """As a real one does: the second is not told so while something still runs."""
    heard: list[Event] = []
    stage = FakeStage("one", lambda _, event, frames: heard.append(event), lambda *_: None)
    stage.light_sleeper = False
    for token in (1, 2):
        stage.send(Sleep(1, token))
    assert heard == []
    stage.fall_asleep()
    stage.send(Sleep(1, 3))
    assert [event.token for event in heard if isinstance(event, Acknowledged)] == [1, 2, 3]
