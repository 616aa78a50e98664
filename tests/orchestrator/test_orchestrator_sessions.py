"""Sessions: segments one after the other, their input, their events, and what ends a session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence

import pytest

from antiphon.core.prompt_plan import UpdateKind
from antiphon.errors import (
    AntiphonError,
    DuplicateRequestError,
    EmptyInputError,
    InputTooLongError,
    InvalidRequestError,
    PayloadError,
    ShutdownError,
    StageDiedError,
    StageError,
)
from antiphon.orchestrator.api import AudioChunk, Finished, SessionEvent, TextDelta
from antiphon.orchestrator.segments import MAX_SEGMENTS
from antiphon.orchestrator.sessions import Session
from antiphon.stage.messages import Abort, Deliver, Submit, Update
from antiphon.testing.fake_stage import FakeStage
from routing import STREAMS, Reader, Routing, segment_uid, session_uid, settle

STAGES = ("thinker", "talker", "code2wav")
TEXT = ("text",)


def finishes(events: Sequence[SessionEvent]) -> list[tuple[int, str, str]]:
    """Segment, finish reason and text of every segment that ended."""
    return [
        (e.segment, e.event.reply.finish_reason, e.event.reply.text)
        for e in events
        if isinstance(e.event, Finished)
    ]


def texts(events: Sequence[SessionEvent]) -> list[tuple[int, str]]:
    return [(e.segment, e.event.text) for e in events if isinstance(e.event, TextDelta)]


def speak(routing: Routing, session: str, segment: int, value: float) -> None:
    """Talker and vocoder do what is left to be done for one segment."""
    unit = segment_uid(session, segment)
    routing["talker"].finish(unit)
    routing["talker"].ref(unit, "codes", epoch=segment)
    routing["code2wav"].audio(unit, [value])


# --- segments ---------------------------------------------------------------------------------


async def test_the_first_segment_begins_the_session_and_the_next_one_updates_it() -> None:
    routing = Routing(STREAMS)
    async with routing.conversation(messages=[{"role": "system", "content": "five"}]) as session:
        assert all(stage.commands == [] for stage in routing.stages.values())
        assert await session.append("one two") == 0
        (submit,) = routing["thinker"].sent(Submit)
        assert (submit.session, submit.epoch, submit.token_ids) == (True, 0, [0, 5, 1, 2])
        unit = session_uid(routing)
        routing["thinker"].end_segment(unit)
        assert await session.append("three") == 1
        (update,) = routing["thinker"].sent(Update)
        assert (update.uid, update.epoch, update.kind) == (unit, 1, UpdateKind.EXTEND)
        assert update.token_ids == [7, 3]
        assert len(routing["thinker"].sent(Submit)) == 1
    routing.assert_empty()


async def test_each_segment_has_units_of_its_own_downstream() -> None:
    routing = Routing(STREAMS)
    async with routing.conversation() as session:
        for _ in range(2):
            await session.append("one")
            routing["thinker"].end_segment(session_uid(routing))
        for name, waits_for in (("talker", "speech"), ("code2wav", "codes")):
            submits = routing[name].sent(Submit)
            assert [(s.uid, s.epoch, s.waits_for, s.session) for s in submits] == [
                (segment_uid(session_uid(routing), n), n, waits_for, False) for n in (0, 1)
            ]
    routing.assert_empty()


async def test_a_segment_waits_until_the_one_before_is_written() -> None:
    """Nothing of it is known to any stage before: no wait of its consumers runs."""
    routing = Routing(STREAMS)
    async with routing.conversation() as session:
        await session.append("one")
        await session.append("two")
        assert routing["thinker"].sent(Update) == []
        assert len(routing["talker"].sent(Submit)) == 1
        routing["thinker"].end_segment(session_uid(routing))
        assert [u.epoch for u in routing["thinker"].sent(Update)] == [1]
        assert len(routing["talker"].sent(Submit)) == 2
    routing.assert_empty()


async def test_a_segment_is_written_while_the_one_before_is_spoken() -> None:
    """C46: events carry their segment; text and audio of two of them mix."""
    routing = Routing(STREAMS)
    async with routing.conversation() as session:
        reader = Reader(session)
        await session.append("one")
        await session.append("two")
        unit = session_uid(routing)
        routing["thinker"].tokens(unit, 1)
        routing["thinker"].ref(unit, "speech")
        routing["thinker"].end_segment(unit)
        routing["thinker"].tokens(unit, 2)
        speak(routing, unit, 0, 0.5)
        routing["thinker"].end_segment(unit, "length")
        routing["thinker"].ref(unit, "speech", empty=True, epoch=1)
        speak(routing, unit, 1, 0.25)
        events = await reader.new()
        assert [(e.segment, type(e.event)) for e in events] == [
            (0, TextDelta),
            (1, TextDelta),
            (0, AudioChunk),
            (0, Finished),
            (1, AudioChunk),
            (1, Finished),
        ]
        assert finishes(events) == [(0, "stop", "one"), (1, "length", "two")]
    routing.assert_empty()


async def test_the_boundaries_of_segments_are_seen_by_a_slow_reader() -> None:
    """C46: three segments have come and gone before anybody reads."""
    routing = Routing()
    async with routing.conversation(modalities=TEXT) as session:
        reader = Reader(session)
        for number, reason in enumerate(("stop", "length", "stop")):
            await session.append("one")
            routing["thinker"].tokens(session_uid(routing), number + 1)
            routing["thinker"].end_segment(session_uid(routing), reason)
        events = await reader.new()
        assert finishes(events) == [(0, "stop", "one"), (1, "length", "two"), (2, "stop", "three")]
        assert texts(events) == [(0, "one"), (1, "two"), (2, "three")]
    routing.assert_empty()


async def test_audio_that_ends_early_ends_no_segment() -> None:
    """C21: what the talker calls its end is the end of the sound and of nothing else."""
    routing = Routing(STREAMS)
    async with routing.conversation() as session:
        reader = Reader(session)
        await session.append("one")
        unit = session_uid(routing)
        routing["thinker"].tokens(unit, 1)
        routing["thinker"].ref(unit, "speech", end=False)
        speak(routing, unit, 0, 0.5)
        routing["thinker"].tokens(unit, 2)
        routing["thinker"].ref(unit, "speech")  # too late for the talker, which discards it
        assert finishes(await reader.new()) == []
        routing["thinker"].end_segment(unit)
        assert finishes(await reader.new()) == [(0, "stop", "one two")]
    routing.assert_empty()


@pytest.mark.parametrize("end_first", [True, False])
async def test_the_end_reaches_a_parked_stage_once_however_it_comes(end_first: bool) -> None:
    """C58: the talker waits for its next chunk while the segment ends; the word that it has ended
    and the last payload may come in either order. The last stage gets one end.
    """
    routing = Routing(STREAMS)
    async with routing.conversation() as session:
        reader = Reader(session)
        await session.append("one")
        unit, spoken = session_uid(routing), segment_uid(session_uid(routing), 0)
        routing["thinker"].ref(unit, "speech", end=False)
        routing["talker"].tokens(spoken, 1)
        routing["talker"].ref(spoken, "codes", end=False)
        if end_first:
            routing["thinker"].end_segment(unit)
            await session.append("two")  # the next one overtakes what is left of this one
            routing["thinker"].ref(unit, "speech", empty=True, epoch=0)
        else:
            routing["thinker"].ref(unit, "speech", empty=True)
            routing["thinker"].end_segment(unit)
            await session.append("two")
        assert finishes(await reader.new()) == []
        speak(routing, unit, 0, 0.5)
        refs = [ref for d in routing["code2wav"].sent(Deliver) for to, ref in d.items]
        assert [(ref.seq, ref.end) for ref in refs] == [(0, False), (1, True)]
        assert finishes(await reader.new()) == [(0, "stop", "")]
    routing.assert_empty()


async def test_late_outputs_of_a_segment_that_is_over_are_dropped_and_counted() -> None:
    """C103: they get into no other segment."""
    routing = Routing()
    async with routing.conversation(modalities=TEXT) as session:
        reader = Reader(session)
        await session.append("one")
        unit = session_uid(routing)
        routing["thinker"].tokens(unit, 1)
        routing["thinker"].end_segment(unit)
        await session.append("two")
        routing["thinker"].tokens(unit, 5, epoch=0)
        routing["thinker"].ref(unit, "speech", epoch=0)
        routing["thinker"].tokens(unit, 2)
        assert texts(await reader.new()) == [(0, "one"), (1, "two")]
        assert routing.router.late_outputs == 1
    routing.assert_empty()


@pytest.mark.parametrize("name", ["{}t7.0", "{}tx.0", "{}t.0", "{}.3", "{}t0.0"])
async def test_outputs_under_a_name_that_no_segment_has_disturb_nobody(name: str) -> None:
    """I4."""
    routing = Routing()
    async with routing.conversation(modalities=TEXT) as session:
        await session.append("one")
        unit = session_uid(routing)
        routing["thinker"].end_segment(unit)
        stranger = name.format(unit.partition(".")[0])
        routing["talker"].tokens(stranger, 1)
        routing["talker"].ref(stranger, "codes")
        assert routing.router.late_outputs == 1
        assert await session.append("two") == 1
    routing.assert_empty()


# --- input ------------------------------------------------------------------------------------


async def test_sampling_changes_at_the_boundary_of_its_segment() -> None:
    """C47: it holds for every stage from there on, and for nothing before."""
    routing = Routing(STREAMS)
    async with routing.conversation(sampling={"talker": {"seed": 1}}) as session:
        await session.append("one")
        await session.append("two", sampling={"thinker": {"max_tokens": 5}, "talker": {"seed": 2}})
        await session.append("three")
        unit = session_uid(routing)
        assert [s.sampling for s in routing["talker"].sent(Submit)] == [{"seed": 1}]
        for _ in range(3):
            routing["thinker"].end_segment(unit)
        (first,), later = routing["thinker"].sent(Submit), routing["thinker"].sent(Update)
        assert first.sampling == {"max_tokens": 64}
        assert [u.sampling for u in later] == [{"max_tokens": 5}] * 2
        assert [s.sampling["seed"] for s in routing["talker"].sent(Submit)] == [1, 2, 2]
    routing.assert_empty()


async def test_a_window_keeps_so_many_tokens() -> None:
    routing = Routing()
    async with routing.conversation(modalities=TEXT) as session:
        await session.append("one")
        routing["thinker"].end_segment(session_uid(routing))
        await session.append("two", keep_tokens=3)
        (update,) = routing["thinker"].sent(Update)
        assert (update.kind, update.keep) == (UpdateKind.WINDOW, 3)
    routing.assert_empty()


async def test_what_cannot_be_said_leaves_the_session_as_it_is() -> None:
    routing = Routing()
    async with routing.conversation(modalities=TEXT) as session:
        with pytest.raises(EmptyInputError):
            await session.append("  ")
        with pytest.raises(InvalidRequestError, match="keep_tokens"):
            await session.append("one", keep_tokens=-1)
        assert await session.append("one") == 0
        with pytest.raises(EmptyInputError):
            await session.replace("")
        with pytest.raises(InvalidRequestError, match="visit"):
            await session.append("one", sampling={"talker": {"seed": 2}})
        assert routing["thinker"].pending_interrupts == []
        assert await session.append("two") == 1
    routing.assert_empty()


async def test_segments_are_numbered_in_the_order_of_the_calls() -> None:
    """The first one begins the conversation, though both were called before it had begun."""
    routing = Routing()
    async with routing.conversation(modalities=TEXT) as session:
        numbers = await asyncio.gather(session.append("one"), session.append("two"))
        assert numbers == [0, 1]
        routing["thinker"].end_segment(session_uid(routing))
        assert routing["thinker"].sent(Submit)[0].token_ids == [0, 1]
        assert routing["thinker"].sent(Update)[0].token_ids == [7, 2]
    routing.assert_empty()


async def test_segments_that_nobody_reads_are_bounded() -> None:
    """A replacement that is refused interrupts nothing. Reading makes room."""
    routing = Routing()
    async with routing.conversation(modalities=TEXT) as session:
        reader = Reader(session)
        for _ in range(MAX_SEGMENTS):
            await session.append("one")
        for say in (session.append, session.replace):
            with pytest.raises(InvalidRequestError, match="read the session's events"):
                await say("two")
        routing["thinker"].end_segment(session_uid(routing))
        with pytest.raises(InvalidRequestError, match="read the session's events"):
            await session.append("two")
        assert len(finishes(await reader.new())) == 1
        assert await session.append("two") == MAX_SEGMENTS
    routing.assert_empty()


# --- ends -------------------------------------------------------------------------------------


async def close(routing: Routing, session: Session) -> None:
    await session.close()


async def abort_by_label(routing: Routing, session: Session) -> None:
    live = routing.router.find("mine")
    assert live is not None
    await routing.router.abort(live)


@pytest.mark.parametrize("ending", [close, abort_by_label])
async def test_closing_ends_every_segment_on_every_stage(
    ending: Callable[[Routing, Session], Coroutine[None, None, None]],
) -> None:
    """C66, C113: one outcome per segment with what there was; the iteration ends."""
    routing = Routing(STREAMS)
    async with routing.conversation(request_id="mine") as session:
        reader = Reader(session)
        for word in ("one", "two", "three"):
            await session.append(word)
        unit = session_uid(routing)
        routing["thinker"].tokens(unit, 1)
        routing["thinker"].end_segment(unit)
        routing["thinker"].tokens(unit, 2)
        closing = asyncio.create_task(ending(routing, session))
        for name in STAGES:
            await settle()
            assert not closing.done()
            (abort,) = routing[name].sent(Abort)
            spoken = [segment_uid(unit, 0), segment_uid(unit, 1)]
            assert abort.uids == ([unit] if name == "thinker" else spoken)
            routing[name].acknowledge()
        await closing
        events = await reader.new()
        assert finishes(events) == [(0, "abort", "one"), (1, "abort", "two"), (2, "abort", "")]
        assert reader.ended
        assert reader.error is None
        assert [event async for event in session] == []  # also for who asks again
    routing.assert_empty()


async def test_a_session_without_a_segment_is_closed_at_once() -> None:
    routing = Routing()
    async with routing.session() as session:
        pass
    assert [event async for event in session] == []
    assert all(stage.commands == [] for stage in routing.stages.values())
    routing.assert_empty()


async def test_who_leaves_leaves_nothing_behind() -> None:
    """C66: the caller's task is cancelled in the middle."""
    routing = Routing(STREAMS)
    for stage in routing.stages.values():
        stage.on_command = lambda _: asyncio.get_running_loop().call_soon(routing.acknowledge_all)

    async def talk() -> None:
        async with routing.session() as session:
            await session.append("one")
            async for _ in session:
                pass

    task = asyncio.create_task(talk())
    while not routing["code2wav"].live:
        await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    routing.assert_empty()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("segment", [0, 1])
async def test_an_error_in_any_segment_is_the_end_of_the_session(stage: str, segment: int) -> None:
    """C46: the iteration raises it once; everything else of the session is aborted."""
    routing = Routing(STREAMS)
    async with routing.conversation() as session:
        reader = Reader(session)
        await session.append("one")
        await session.append("two")
        await session.append("three")
        unit = session_uid(routing)
        routing["thinker"].end_segment(unit)
        failed = unit if stage == "thinker" else segment_uid(unit, segment)
        routing[stage].fail(failed, PayloadError("the payload is corrupt"))
        assert await reader.new() == []
        assert reader.error is None
        for name in STAGES:
            assert len(routing[name].sent(Abort)) == 1
        routing.acknowledge_all()
        assert finishes(await reader.new()) == []
        assert isinstance(reader.error, PayloadError)
        assert reader.ended
        with pytest.raises(PayloadError, match=r"has ended: the payload is corrupt"):
            await session.append("four")
        await session.interrupt()  # there is nothing that it would have to wait for
    routing.assert_empty()


async def test_a_conversation_that_has_outgrown_the_model_ends_with_its_error() -> None:
    routing = Routing()
    async with routing.conversation(modalities=TEXT) as session:
        reader = Reader(session)
        await session.append("one")
        routing["thinker"].end_segment(session_uid(routing))
        await session.append("two")
        routing["thinker"].fail(session_uid(routing), InputTooLongError("too long"))
        routing.acknowledge_all()
        assert finishes(await reader.new()) == [(0, "stop", "")]
        assert isinstance(reader.error, InputTooLongError)


@pytest.mark.parametrize("idle", [True, False])
@pytest.mark.parametrize("stage", STAGES)
async def test_the_death_of_a_stage_is_the_end_of_its_sessions(stage: str, idle: bool) -> None:
    """C46: also of one that says nothing just then; one that does not need the stage goes on."""
    routing = Routing(STREAMS)
    async with (
        routing.conversation() as spoken,
        routing.conversation(modalities=TEXT) as written,
    ):
        reader = Reader(spoken)
        await spoken.append("one")
        unit = session_uid(routing)
        if idle:
            routing["thinker"].end_segment(unit)
            routing["thinker"].ref(unit, "speech", epoch=0)
            speak(routing, unit, 0, 0.5)
        routing[stage].die()
        routing.acknowledge_all()
        assert len(finishes(await reader.new())) == idle
        assert isinstance(reader.error, StageDiedError)
        assert stage in str(reader.error)
        if stage == "thinker":
            with pytest.raises(StageDiedError):
                await written.append("one")
        else:
            assert await written.append("one") == 0
            routing["thinker"].end_segment(session_uid(routing))
    assert len(routing.router) == 0


@pytest.mark.parametrize("reason", ["stop", "length", "abort"])
async def test_a_session_that_a_stage_ends_by_itself_has_failed(reason: str) -> None:
    """C59: an ending without an answer never looks like success."""
    routing = Routing()
    async with routing.conversation(modalities=TEXT) as session:
        reader = Reader(session)
        await session.append("one")
        routing["thinker"].finish(session_uid(routing), reason)
        routing.acknowledge_all()
        assert await reader.new() == []
        assert isinstance(reader.error, StageError)


async def test_a_segment_that_a_stage_interrupts_by_itself_has_failed() -> None:
    routing = Routing()
    async with routing.conversation(modalities=TEXT) as session:
        reader = Reader(session)
        await session.append("one")
        routing["thinker"].end_segment(session_uid(routing), "interrupt")
        routing.acknowledge_all()
        assert await reader.new() == []
        assert isinstance(reader.error, StageError)


async def test_closing_the_pipeline_fails_its_sessions() -> None:
    routing = Routing(STREAMS)
    async with routing.conversation() as session:
        reader = Reader(session)
        await session.append("one")
        closing = asyncio.create_task(routing.router.close())
        await settle()
        assert not closing.done()
        routing.acknowledge_all()
        await closing
        assert await reader.new() == []
        assert isinstance(reader.error, ShutdownError)
    routing.assert_empty()


async def test_a_stage_that_never_answers_keeps_no_session_waiting() -> None:
    """The stages have been stopped in the middle of an interruption."""
    routing = Routing(STREAMS)
    async with routing.conversation() as session:
        reader = Reader(session)
        await session.append("one")
        interrupting = asyncio.create_task(session.interrupt())
        await settle()
        routing.router.abandon()
        await interrupting
        assert finishes(await reader.new()) == [(0, "interrupt", "")]
        assert isinstance(reader.error, ShutdownError)
    routing.router.check_integrity()
    assert len(routing.router) == 0


# --- entering ---------------------------------------------------------------------------------


async def test_a_session_is_entered_once_and_used_inside() -> None:
    routing = Routing()
    session = routing.session()
    for early in (session.append("one"), session.interrupt(), session.close(), anext(session)):
        with pytest.raises(InvalidRequestError, match="async with"):
            await early
    async with session:
        with pytest.raises(InvalidRequestError, match="entered already"):
            await session.__aenter__()
    with pytest.raises(InvalidRequestError, match="closed"):
        await session.append("one")


async def test_a_session_has_its_label_for_itself() -> None:
    routing = Routing()
    async with routing.conversation(request_id="mine"):
        with pytest.raises(DuplicateRequestError):
            await routing.session(request_id="mine").__aenter__()
        with pytest.raises(DuplicateRequestError):
            routing.submit(request_id="mine")
    assert routing.router.find("mine") is None


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"entry": "nowhere"}, InvalidRequestError),
        ({"modalities": ("smell",)}, InvalidRequestError),
        ({"sampling": {"thinker": {"temprature": 1}}}, InvalidRequestError),
        ({"messages": [{"role": "ghost", "content": "boo"}]}, InvalidRequestError),
    ],
)
async def test_what_no_session_can_have_is_refused_when_it_is_entered(
    given: dict[str, object], error: type[AntiphonError]
) -> None:
    routing = Routing()
    with pytest.raises(error):
        await routing.session(**given).__aenter__()
    routing.assert_empty()


async def test_a_session_on_a_dead_stage_is_refused() -> None:
    routing = Routing()
    routing["talker"].die()
    with pytest.raises(StageDiedError, match="talker"):
        await routing.session(request_id="mine").__aenter__()
    assert routing.router.find("mine") is None


def test_a_fake_stage_holds_a_router_to_its_word() -> None:
    """Negative control: what these tests rely on the fake to notice, it notices."""
    stage = FakeStage("one", lambda *_: None, lambda *_: None)
    stage.send(Submit("s.0", [1], {}, session=True))
    with pytest.raises(AssertionError, match="not newer"):
        stage.send(Update("s.0", 0, UpdateKind.EXTEND, [1]))
    stage.send(Submit("st1.0", [], {}, epoch=1, waits_for="speech"))
    other = FakeStage("other", lambda *_: None, lambda *_: None, keys=stage.keys)
    ref = other.ref("s.0", "speech", end=True)
    with pytest.raises(AssertionError, match="epoch"):
        stage.send(Deliver([("st1.0", ref)]))
    ref = other.ref("s.0", "speech", end=True, epoch=1)
    stage.send(Deliver([("st1.0", ref)]))
    with pytest.raises(AssertionError, match="behind the end"):
        stage.send(Deliver([("st1.0", ref)]))
