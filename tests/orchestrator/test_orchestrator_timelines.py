"""The record of a request, for each way in which one ends: observers get it once, well-formed."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from antiphon.errors import DeadlineExceededError, PayloadError, ShutdownError, StageDiedError
from antiphon.observe.record import EdgeSpan, StageSpan, Timeline
from antiphon.orchestrator.live import LiveRequest
from antiphon.testing.fake_stage import FakeStage
from kv_pipelines import PAINTING
from routing import (
    STREAMS,
    Reader,
    Routing,
    drain,
    outcomes,
    picture,
    reply_of,
    segment_uid,
    session_uid,
    settle,
    uid,
)

STAGES = ("thinker", "talker", "code2wav")
TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


class Witness:
    """An observer: what it was told, in order, and the records."""

    def __init__(self, routing: Routing) -> None:
        self.told: list[tuple[str, str]] = []
        self.paths: list[tuple[str, ...]] = []
        self.timelines: list[Timeline] = []
        routing.router.observers.add(self)

    def began(self, uid: str, path: tuple[str, ...]) -> None:
        self.told.append(("began", uid))
        self.paths.append(path)

    def first_output(self, uid: str) -> None:
        self.told.append(("first", uid))

    def ended(self, timeline: Timeline) -> None:
        self.told.append(("ended", timeline.id))
        well_formed(timeline)
        self.timelines.append(timeline)

    def refused(self, code: str) -> None:
        self.told.append(("refused", code))

    def the_one(self) -> Timeline:
        """Of the only request that there was."""
        (timeline,) = self.timelines
        assert [what for what, _ in self.told if what != "first"] == ["began", "ended"]
        assert {uid for _, uid in self.told} == {timeline.id}
        return timeline


def well_formed(timeline: Timeline) -> None:
    """Every moment lies within the request, and in its order."""
    assert msgspec.json.decode(msgspec.json.encode(timeline), type=Timeline) == timeline
    end = timeline.total_s
    for unit in timeline.stages:
        rising(0.0, unit.submitted_s, unit.input_s, unit.first_s, unit.last_s, end)
    for edge in timeline.edges:
        rising(0.0, edge.first_s, edge.last_s, end)
        rising(edge.first_s, edge.first_used_s, edge.last_used_s, end)
        units = {u.part: u for u in timeline.stages if u.stage == edge.consumer}
        assert set(edge.consumer_parts) <= units.keys()
        assert all(units[part].input_s is not None for part in edge.consumer_parts)
        assert edge.part in {u.part for u in timeline.stages if u.stage == edge.producer}


def rising(*moments: float | None) -> None:
    known = [moment for moment in moments if moment is not None]
    assert known == sorted(known)


def stage_of(timeline: Timeline, name: str, part: int = 0) -> StageSpan:
    (unit,) = [u for u in timeline.stages if (u.stage, u.part) == (name, part)]
    return unit


def edge_of(timeline: Timeline, name: str, part: int = 0) -> EdgeSpan:
    (edge,) = [e for e in timeline.edges if (e.edge, e.part) == (name, part)]
    return edge


def tick(routing: Routing, stage: str) -> FakeStage:
    """A second later."""
    routing.clock.advance(1)
    return routing[stage]


# --- the milestones ---------------------------------------------------------------------------


async def test_a_request_that_finishes_tells_when_everything_was() -> None:
    """C73."""
    routing = Routing(STREAMS)
    witness = Witness(routing)
    live = routing.submit(request_id="mine", trace_headers=TRACE)
    tick(routing, "thinker").tokens(uid(live), 1)  # at 1 s
    tick(routing, "thinker").ref(uid(live), "speech", end=False)  # 2
    tick(routing, "thinker").tokens(uid(live), 2, finish="stop")  # 3
    tick(routing, "thinker").ref(uid(live), "speech")  # 4
    tick(routing, "talker").tokens(uid(live), 1, 2, 3)  # 5: both chunks are used up
    tick(routing, "talker").ref(uid(live), "codes")  # 6
    routing["talker"].finish(uid(live))
    tick(routing, "code2wav").audio(uid(live), [0.5] * 2400)  # 7
    timeline = witness.the_one()
    assert (timeline.label, timeline.pipeline, timeline.entry) == ("mine", "sample", "chat")
    assert (timeline.outcome, timeline.cause, timeline.message) == ("stop", None, None)
    assert (timeline.total_s, timeline.ttft_s, timeline.ttfa_s) == (7, 1, 7)
    assert timeline.text_s == ((1, 1), (3, 1))
    assert timeline.audio_s == ((7, 0.1),)
    assert timeline.trace_headers == TRACE
    assert stage_of(timeline, "thinker") == StageSpan(
        stage="thinker",
        part=0,
        submitted_s=0,
        input_s=0,
        first_s=1,
        last_s=3,
        tokens=2,
        finish="stop",
    )
    talker = stage_of(timeline, "talker")
    assert (talker.input_s, talker.first_s, talker.last_s, talker.tokens) == (2, 5, 6, 3)
    assert edge_of(timeline, "speech") == EdgeSpan(
        edge="speech",
        producer="thinker",
        consumer="talker",
        part=0,
        first_s=2,
        last_s=4,
        chunks=2,
        bytes=0,
        consumer_parts=(0,),
        producer_output_s=1,
        first_used_s=5,
        last_used_s=5,
        consumer_output_s=5,
    )
    codes = edge_of(timeline, "codes")
    assert (codes.first_s, codes.first_used_s, codes.consumer_output_s) == (6, 7, 7)
    assert reply_of(drain(live)).timeline == timeline
    assert witness.told[1] == ("first", live.uid)
    assert witness.paths == [STAGES]


async def test_each_part_of_a_split_edge_has_a_unit_of_its_own() -> None:
    routing = Routing()
    witness = Witness(routing)
    live = routing.submit()
    tick(routing, "thinker").ref(uid(live), "speech", end=False)
    tick(routing, "thinker").ref(uid(live), "speech")
    routing["thinker"].finish(uid(live))
    for part in (0, 1):
        tick(routing, "talker").ref(uid(live, part), "codes")
        routing["talker"].finish(uid(live, part))
        tick(routing, "code2wav").audio(uid(live, part), [0.5])
    timeline = witness.the_one()
    speech = edge_of(timeline, "speech")
    assert (speech.consumer_parts, speech.chunks) == ((0, 1), 2)
    assert [stage_of(timeline, "talker", part).input_s for part in (0, 1)] == [1, 2]
    assert [edge_of(timeline, "codes", part).consumer_parts for part in (0, 1)] == [(0,), (1,)]


async def test_an_edge_that_brought_nothing_but_its_end_has_no_chunks() -> None:
    routing = Routing(STREAMS)
    witness = Witness(routing)
    live = routing.submit()
    tick(routing, "thinker").ref(uid(live), "speech", empty=True)
    routing["thinker"].finish(uid(live))
    tick(routing, "talker").ref(uid(live), "codes", empty=True)
    routing["talker"].finish(uid(live))
    routing["code2wav"].finish(uid(live))
    speech = edge_of(witness.the_one(), "speech")
    assert (speech.chunks, speech.first_s, speech.first_used_s) == (0, 1, None)


async def test_a_cache_is_taken_by_every_companion() -> None:
    routing = Routing(PAINTING)
    witness = Witness(routing)
    live = routing.submit(n=2)
    tick(routing, "thinker").ref(uid(live), "scene")
    routing["thinker"].tokens(uid(live), 1, finish="stop")
    tick(routing, "painter").image(uid(live, 1), picture(1))
    tick(routing, "painter").image(uid(live, 0), picture(1))
    timeline = witness.the_one()
    scene = edge_of(timeline, "scene")
    assert (scene.cache, scene.consumer_parts) == (True, (0, 1))
    assert (scene.first_s, scene.first_used_s, scene.consumer_output_s) == (1, 3, 2)
    assert timeline.ttfi_s == 2


# --- outcomes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", ["request", "disconnect"])
async def test_an_abort_says_who_wanted_it(cause: str) -> None:
    routing = Routing()
    witness = Witness(routing)
    live = routing.submit()
    tick(routing, "thinker").tokens(uid(live), 1, 2)
    abort = asyncio.create_task(routing.router.abort(live, cause))
    await settle()
    routing.clock.advance(1)
    routing.acknowledge_all()
    await abort
    timeline = witness.the_one()
    assert (timeline.outcome, timeline.cause, timeline.total_s) == ("abort", cause, 2)
    assert timeline.output_tokens == 2
    talker = stage_of(timeline, "talker")
    assert (talker.input_s, talker.first_s, talker.finish) == (None, None, None)
    assert reply_of(drain(live)).timeline == timeline


@pytest.mark.parametrize("stage", STAGES)
async def test_an_error_is_marked_at_the_stage_that_it_came_from(stage: str) -> None:
    routing = Routing()
    witness = Witness(routing)
    live = routing.submit()
    tick(routing, stage).fail(uid(live), PayloadError("the payload is corrupt"))
    routing.clock.advance(1)
    routing.acknowledge_all()
    timeline = witness.the_one()
    assert (timeline.outcome, timeline.cause) == ("error", "payload")
    assert timeline.message == "the payload is corrupt"
    assert [u.stage for u in timeline.stages if u.finish == "error"] == [stage]
    assert (stage_of(timeline, stage).last_s, timeline.total_s) == (1, 2)


async def test_a_payload_of_a_part_that_is_not_there_ends_the_request_with_a_record() -> None:
    routing = Routing(STREAMS)
    witness = Witness(routing)
    live = routing.submit()
    routing["thinker"].ref(f"{live.uid}.7", "speech")
    routing.acknowledge_all()
    timeline = witness.the_one()
    assert (timeline.outcome, timeline.edges) == ("error", ())


async def test_a_deadline_is_an_error_with_its_code() -> None:
    routing = Routing()
    witness = Witness(routing)
    live = routing.submit(deadline_s=5)
    routing.clock.advance(5)
    routing.acknowledge_all()
    assert isinstance(await live.events.get(), DeadlineExceededError)
    assert witness.the_one().cause == "deadline_exceeded"


async def test_the_death_of_a_stage_and_a_shutdown_are_errors() -> None:
    routing = Routing()
    witness = Witness(routing)
    first = routing.submit()
    routing["talker"].die()
    routing.acknowledge_all()
    second = routing.submit(modalities=("text",))
    closing = asyncio.create_task(routing.router.close())
    await settle()
    routing.acknowledge_all()
    await closing
    assert [t.cause for t in witness.timelines] == [StageDiedError.code, ShutdownError.code]
    assert [t.id for t in witness.timelines] == [first.uid, second.uid]


async def test_what_is_no_unicode_in_a_label_becomes_question_marks() -> None:
    """Half of a surrogate pair is a string in JSON; no observer could write it."""
    routing = Routing()
    witness = Witness(routing)
    live = routing.submit(modalities=("text",), request_id="a\ud800b")
    finish_text(routing, live)
    assert witness.the_one().label == "a?b"


async def test_every_observer_is_told() -> None:
    routing = Routing()
    witnesses = [Witness(routing), Witness(routing)]
    finish_text(routing, routing.submit(modalities=("text",)))
    first, second = (witness.the_one() for witness in witnesses)
    assert first is second


def finish_text(routing: Routing, live: LiveRequest) -> None:
    routing["thinker"].tokens(uid(live), 1, finish="stop")
    assert len(outcomes(drain(live))) == 1


# --- sessions ---------------------------------------------------------------------------------


async def test_each_segment_has_a_record_with_its_own_end() -> None:
    """One that is interrupted before it began has none: nobody was told of it."""
    routing = Routing(STREAMS)
    witness = Witness(routing)
    async with routing.conversation(request_id="talk") as session:
        reader = Reader(session)
        await session.append("one")
        unit = session_uid(routing)
        tick(routing, "thinker").tokens(unit, 1)
        await session.append("two")
        tick(routing, "thinker").ref(unit, "speech")
        routing["thinker"].end_segment(unit)  # at 2 s, when the second one begins
        spoken = segment_uid(unit, 0)
        tick(routing, "talker").ref(spoken, "codes")
        routing["talker"].finish(spoken)
        tick(routing, "code2wav").audio(spoken, [0.5])  # 4
        tick(routing, "thinker").tokens(unit, 2)
        await session.append("three")
        interrupting = asyncio.create_task(session.interrupt())
        await settle()
        routing.clock.advance(1)
        routing.acknowledge_all()
        await interrupting
        await reader.new()
    first, second = witness.timelines
    assert [(t.outcome, t.cause, t.label) for t in witness.timelines] == [
        ("stop", None, "talk"),
        ("interrupt", None, "talk"),
    ]
    assert first.id != second.id
    assert (first.total_s, first.ttft_s, first.ttfa_s) == (4, 1, 4)
    # The second was said at 1 s and begun at 2 s; what it waited counts for it.
    assert (stage_of(second, "thinker").submitted_s, second.ttft_s, second.total_s) == (1, 4, 5)
    assert sorted(witness.told) == sorted(
        (what, t.id) for t in witness.timelines for what in ("began", "first", "ended")
    )


async def test_closing_a_session_aborts_its_segment() -> None:
    routing = Routing(STREAMS)
    witness = Witness(routing)
    async with routing.conversation() as session:
        await session.append("one")
        tick(routing, "thinker").tokens(session_uid(routing), 1)
    assert witness.the_one().outcome == "abort"


@pytest.mark.parametrize("stage", ["thinker", "talker"])
async def test_an_error_ends_the_segment_at_the_stage_that_it_came_from(stage: str) -> None:
    routing = Routing(STREAMS)
    witness = Witness(routing)
    async with routing.conversation() as session:
        await session.append("one")
        unit = session_uid(routing)
        failing = unit if stage == "thinker" else segment_uid(unit, 0)
        tick(routing, stage).fail(failing, PayloadError("the payload is corrupt"))
        routing.acknowledge_all()
    timeline = witness.the_one()
    assert (timeline.outcome, timeline.cause) == ("error", "payload")
    assert [u.stage for u in timeline.stages if u.finish == "error"] == [stage]
