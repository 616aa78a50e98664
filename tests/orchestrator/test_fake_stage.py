"""The shipped fake answers by itself, so that routing can be tried without an engine."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.stage.messages import Acknowledged, Event, Inspect, Inspection, Sleep, Submit
from antiphon.testing.fake_stage import Answer, FakeStage
from routing import Routing, drain, reply_of, settle, uid

ANSWERS = {
    "thinker": Answer(token_ids=(1, 2), parts=2),
    "talker": Answer(token_ids=(7, 7, 7)),
    "code2wav": Answer(samples=(0.25, 0.5)),
}


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
