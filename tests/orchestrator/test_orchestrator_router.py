"""The one way in which a request ends: aborts, errors, deadlines, death, shutdown."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.errors import (
    DeadlineExceededError,
    DuplicateRequestError,
    PayloadError,
    ShutdownError,
    StageDiedError,
    StageStepError,
)
from antiphon.orchestrator.api import Finished
from antiphon.orchestrator.live import PATIENCE_S, Phase
from antiphon.stage.messages import Abort, Discard
from routing import Routing, drain, outcomes, reply_of, settle, text_of, uid

STAGES = ("thinker", "talker", "code2wav")


async def test_an_abort_tells_every_stage_and_waits_for_all() -> None:
    """C113: exactly one outcome, with what had been generated, once the last stage has let go."""
    routing = Routing()
    live = routing.submit()
    routing["thinker"].tokens(uid(live), 1, 2)
    abort = asyncio.create_task(routing.router.abort(live))
    await settle()
    for name in STAGES:
        (command,) = routing[name].sent(Abort)
        assert command.uids == [uid(live)]
        assert not abort.done()
        assert outcomes(drain_copy(live)) == []
        routing[name].acknowledge()
        await settle()
    await abort
    events = drain(live)
    assert text_of(events) == "one two"
    reply = reply_of(events)
    assert (reply.text, reply.finish_reason) == ("one two", "abort")
    routing.assert_empty()


def drain_copy(live):  # type: ignore[no-untyped-def]
    """The events so far, which stay in the queue."""
    events = drain(live)
    for event in events:
        live.events.put_nowait(event)
    return events


async def test_an_abort_names_every_part() -> None:
    routing = Routing()
    live = routing.submit()
    routing["thinker"].ref(uid(live), "speech", end=False)
    abort = asyncio.create_task(routing.router.abort(live))
    await settle()
    assert routing["talker"].sent(Abort)[0].uids == [uid(live, 0), uid(live, 1)]
    routing.acknowledge_all()
    await abort
    routing.assert_empty()


async def test_two_aborts_are_one() -> None:
    routing = Routing()
    live = routing.submit()
    aborts = [asyncio.create_task(routing.router.abort(live)) for _ in range(2)]
    await settle()
    assert len(routing["thinker"].sent(Abort)) == 1
    routing.acknowledge_all()
    await asyncio.gather(*aborts)
    assert len(outcomes(drain(live))) == 1


async def test_an_abort_after_the_end_changes_nothing() -> None:
    routing = Routing()
    live = routing.submit(modalities=("text",))
    routing["thinker"].tokens(uid(live), 1, finish="stop")
    await routing.router.abort(live)
    assert routing["thinker"].sent(Abort) == []
    assert reply_of(drain(live)).finish_reason == "stop"


async def test_what_comes_while_a_request_ends_is_dropped() -> None:
    """A payload that was stored meanwhile is discarded by the stage that stored it."""
    routing = Routing()
    live = routing.submit()
    abort = asyncio.create_task(routing.router.abort(live))
    await settle()
    routing["thinker"].tokens(uid(live), 1)
    ref = routing["thinker"].ref(uid(live), "speech")
    assert routing["thinker"].sent(Discard) == [Discard([str(ref.key)])]
    assert routing["talker"].sent(Discard) == []
    routing.acknowledge_all()
    await abort
    assert reply_of(drain(live)).text == ""
    routing.assert_empty()


async def test_late_outputs_and_payloads_of_an_unknown_request_are_counted_and_discarded() -> None:
    """C66, C82."""
    routing = Routing()
    live = routing.submit(modalities=("text",))
    routing["thinker"].tokens(uid(live), 1, finish="stop")
    drain(live)
    routing["thinker"].tokens(uid(live), 2)
    ref = routing["thinker"].ref(uid(live), "speech")
    assert routing.router.late_outputs == 1
    assert routing["thinker"].sent(Discard) == [Discard([str(ref.key)])]
    assert drain(live) == []
    routing.assert_empty()


@pytest.mark.parametrize("name", ["no-dot", "", "x.notanumber", ".", "0.0.0"])
async def test_outputs_under_a_foreign_name_disturb_nobody(name: str) -> None:
    """I4: no event raises because of one request."""
    routing = Routing()
    live = routing.submit(modalities=("text",))
    routing["thinker"].tokens(name, 1)
    routing["thinker"].ref(name, "speech")
    routing["thinker"].tokens(uid(live), 1, finish="stop")
    assert reply_of(drain(live)).text == "one"
    routing.assert_empty()


@pytest.mark.parametrize("part", ["7", "-1", "x"])
async def test_a_part_that_the_request_does_not_have_ends_only_it(part: str) -> None:
    """I4: as before, with the request's own name in front."""
    routing = Routing()
    live, other = routing.submit(modalities=("text",)), routing.submit(modalities=("text",))
    routing["thinker"].tokens(f"{live.uid}.{part}", 1)
    routing.acknowledge_all()
    assert len(outcomes(drain(live))) == 1
    routing["thinker"].tokens(uid(other), 1, finish="stop")
    assert reply_of(drain(other)).text == "one"


async def test_a_label_is_rejected_while_it_lives_and_free_afterwards() -> None:
    """C87: the second use starts afresh, and late outputs of the first do not reach it."""
    routing = Routing()
    first = routing.submit(modalities=("text",), request_id="mine")
    with pytest.raises(DuplicateRequestError, match="mine"):
        routing.submit(modalities=("text",), request_id="mine")
    routing["thinker"].tokens(uid(first), 1, finish="stop")
    second = routing.submit(modalities=("text",), request_id="mine")
    assert second.uid != first.uid
    routing["thinker"].tokens(uid(first), 3)
    routing["thinker"].tokens(uid(second), 2, finish="stop")
    assert reply_of(drain(second)).text == "two"


async def test_a_label_stays_taken_until_every_stage_has_let_go() -> None:
    routing = Routing()
    live = routing.submit(request_id="mine")
    abort = asyncio.create_task(routing.router.abort(live))
    await settle()
    with pytest.raises(DuplicateRequestError):
        routing.submit(request_id="mine")
    routing.acknowledge_all()
    await abort
    assert routing.router.find("mine") is None
    routing.submit(request_id="mine")


async def test_a_deadline_ends_the_request_on_every_stage() -> None:
    """C12: the error says which limit it was."""
    routing = Routing()
    live = routing.submit(deadline_s=5)
    other = routing.submit()
    routing.clock.advance(4.9)
    assert routing["thinker"].sent(Abort) == []
    routing.clock.advance(0.1)
    for name in STAGES:
        assert [c.uids for c in routing[name].sent(Abort)] == [[uid(live)]]
    routing.acknowledge_all()
    (outcome,) = outcomes(drain(live))
    assert isinstance(outcome, DeadlineExceededError)
    assert "5 s" in str(outcome)
    assert outcomes(drain(other)) == []


@pytest.mark.parametrize("late", STAGES)
async def test_a_stage_that_hangs_holds_up_no_outcome(late: str) -> None:
    """C12: told after a second, once; the request is held until the stage has let go of it."""
    routing = Routing()
    live = routing.submit(request_id="mine")
    routing["thinker"].fail(uid(live), PayloadError("the payload is corrupt"))
    for name in STAGES:
        if name != late:
            routing[name].acknowledge()
    routing.clock.advance(PATIENCE_S - 0.1)
    assert outcomes(drain(live)) == []
    routing.clock.advance(0.1)
    (outcome,) = outcomes(drain(live))
    assert isinstance(outcome, PayloadError)
    assert (len(routing.router), live.phase) == (1, Phase.ENDING)
    with pytest.raises(DuplicateRequestError):
        routing.submit(request_id="mine")
    routing[late].acknowledge()
    assert outcomes(drain(live)) == []
    assert live.ended.is_set()
    routing.assert_empty()


async def test_a_deadline_that_is_met_leaves_no_timer() -> None:
    routing = Routing()
    live = routing.submit(modalities=("text",), deadline_s=60.0)
    routing["thinker"].tokens(uid(live), 1, finish="stop")
    assert routing.clock.ordered == 0


@pytest.mark.parametrize("stage", STAGES)
async def test_an_error_on_one_stage_ends_the_request_on_all(stage: str) -> None:
    """C60, C8: the user gets that stage's error; no other request notices."""
    routing = Routing()
    live, other = routing.submit(), routing.submit()
    routing[stage].fail(uid(live), PayloadError("the payload is corrupt"))
    for name in STAGES:
        assert [c.uids for c in routing[name].sent(Abort)] == [[uid(live)]]
    assert outcomes(drain(live)) == []
    routing.acknowledge_all()
    (outcome,) = outcomes(drain(live))
    assert isinstance(outcome, PayloadError)
    assert str(outcome) == "the payload is corrupt"
    assert outcomes(drain(other)) == []
    assert len(routing.router) == 1


async def test_the_first_error_is_the_one_that_is_reported() -> None:
    routing = Routing()
    live = routing.submit()
    routing["talker"].fail(uid(live), StageStepError("first"))
    routing["code2wav"].fail(uid(live), StageStepError("second"))
    routing.acknowledge_all()
    (outcome,) = outcomes(drain(live))
    assert str(outcome) == "first"


async def test_the_death_of_a_stage_fails_only_requests_bound_to_it() -> None:
    """C93: a request that never goes there survives; the error names the stage."""
    routing = Routing()
    spoken, written = routing.submit(), routing.submit(modalities=("text",))
    routing["talker"].die()
    routing["thinker"].acknowledge()
    assert outcomes(drain(spoken)) == []
    routing["code2wav"].acknowledge()
    (outcome,) = outcomes(drain(spoken))
    assert isinstance(outcome, StageDiedError)
    assert "talker" in str(outcome)
    routing["thinker"].tokens(uid(written), 1, finish="stop")
    assert reply_of(drain(written)).text == "one"
    routing.assert_empty()


async def test_a_stage_that_dies_owes_no_acknowledgement() -> None:
    routing = Routing()
    live = routing.submit()
    abort = asyncio.create_task(routing.router.abort(live))
    await settle()
    routing["thinker"].acknowledge()
    routing["talker"].acknowledge()
    routing["code2wav"].die()
    await abort
    assert isinstance(outcomes(drain(live))[0], Finished)
    routing.assert_empty()


async def test_what_a_dead_stage_did_not_take_is_discarded_by_its_producer() -> None:
    """C82: its requests' payloads do not fill the producer's connector."""
    routing = Routing()
    live = routing.submit()
    ref = routing["thinker"].ref(uid(live), "speech")
    assert routing.keys == {ref.key}
    routing["talker"].die()
    assert routing["thinker"].sent(Discard) == [Discard([str(ref.key)])]
    routing.acknowledge_all()
    routing.assert_empty()


async def test_a_request_for_a_dead_stage_is_refused_and_leaves_nothing() -> None:
    routing = Routing()
    routing["talker"].die()
    with pytest.raises(StageDiedError, match="talker"):
        routing.submit(request_id="mine")
    assert routing["thinker"].commands == []
    assert routing.router.find("mine") is None
    assert routing.submit(modalities=("text",)) is not None


async def test_when_every_stage_dies_every_request_ends() -> None:
    routing = Routing()
    requests = [routing.submit(), routing.submit(modalities=("text",))]
    for stage in routing.stages.values():
        stage.die()
    for live in requests:
        assert len(outcomes(drain(live))) == 1
    assert len(routing.router) == 0


async def test_closing_fails_what_is_alive() -> None:
    routing = Routing()
    requests = [routing.submit(), routing.submit(modalities=("text",))]
    close = asyncio.create_task(routing.router.close())
    await settle()
    assert not close.done()
    routing.acknowledge_all()
    await close
    for live in requests:
        (outcome,) = outcomes(drain(live))
        assert isinstance(outcome, ShutdownError)
    routing.assert_empty()


async def test_a_stage_that_never_answers_keeps_no_caller_waiting() -> None:
    """The stages have been stopped without acknowledging: every request still has one outcome."""
    routing = Routing()
    closed, aborted = routing.submit(), routing.submit()
    abort = asyncio.create_task(routing.router.abort(aborted))
    await settle()
    routing.router.abandon()
    await abort
    assert reply_of(drain(aborted)).finish_reason == "abort"
    (outcome,) = outcomes(drain(closed))
    assert isinstance(outcome, ShutdownError)
    assert len(routing.router) == 0
    routing.router.check_integrity()


async def test_requests_of_a_dead_stage_do_not_share_one_exception() -> None:
    """Raised by many callers at once, a shared one would collect the tracebacks of all."""
    routing = Routing()
    lives = [routing.submit(modalities=("text",)) for _ in range(2)]
    routing["thinker"].die()
    first, second = (outcomes(drain(live))[0] for live in lives)
    assert type(first) is type(second) is StageDiedError
    assert str(first) == str(second)
    assert first is not second
