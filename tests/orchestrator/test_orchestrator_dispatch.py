"""Chunks under way and answers expected: who is told of what, and when something is over."""

from __future__ import annotations

from functools import partial

import pytest

from antiphon.errors import StageDiedError
from antiphon.orchestrator.acknowledgements import Acknowledgements
from antiphon.orchestrator.deliveries import Deliveries
from antiphon.payload.ref import Ref
from antiphon.stage.messages import Abort, Command, Deliver, Discard, Step, Used
from routing import STREAMS, Routing, uid


class Sent:
    """What stages were sent, in order."""

    def __init__(self) -> None:
        self.gone: set[str] = set()
        self.commands: list[tuple[str, Command]] = []

    def __call__(self, stage: str, command: Command) -> None:
        self.commands.append((stage, command))


def ref(key: str | None, seq: int = 0) -> Ref:
    return Ref("a.0", "speech", seq, end=False, key=key)


def test_chunks_of_one_step_travel_in_one_message() -> None:
    sent = Sent()
    deliveries = Deliveries(sent, sent.gone)
    chunks = [ref("k0"), ref("k1", 1)]
    for chunk in chunks:
        deliveries.deliver("thinker", "talker", ("a.0",), chunk)
    assert sent.commands == []
    deliveries.flush()
    deliveries.flush()
    assert sent.commands == [("talker", Deliver([("a.0", chunk) for chunk in chunks]))]


def test_the_producer_is_told_once_what_has_been_used_up() -> None:
    sent = Sent()
    deliveries = Deliveries(sent, sent.gone)
    deliveries.deliver("thinker", "talker", ("a.0",), ref("k0"))
    deliveries.deliver("other", "talker", ("b.0",), ref("k1"))
    deliveries.flush()
    sent.commands.clear()
    assert len(deliveries) == 2
    for _ in range(2):
        deliveries.used("talker", "speech", ["k0", "k1", "unknown"])
    assert sent.commands == [("thinker", Used("speech", ["k0"])), ("other", Used("speech", ["k1"]))]
    assert len(deliveries) == 0


def test_a_chunk_for_a_stage_that_is_gone_is_discarded() -> None:
    """C82: before it was sent on, or after."""
    sent = Sent()
    deliveries = Deliveries(sent, sent.gone)
    deliveries.deliver("thinker", "talker", ("a.0",), ref("k0"))
    sent.gone.add("talker")
    deliveries.lost("talker")
    deliveries.deliver("thinker", "talker", ("a.0",), ref("k1"))
    discards = [command for _, command in sent.commands if isinstance(command, Discard)]
    assert discards == [Discard(["k0"]), Discard(["k1"])]
    assert len(deliveries) == 0


def test_a_producer_that_has_ended_is_told_of_no_use() -> None:
    """C82: the one that serves in its place has never heard of what was stored before it."""
    sent, used = Sent(), []
    deliveries = Deliveries(sent, sent.gone)
    deliveries.deliver("thinker", "talker", ("a.0",), ref("k0"), partial(used.append, "k0"))
    deliveries.deliver("thinker", "talker", ("a.0",), ref("k1", 1))
    deliveries.deliver("other", "talker", ("b.0",), ref("k2"))
    deliveries.flush()
    sent.commands.clear()
    deliveries.lost("thinker")
    deliveries.used("talker", "speech", ["k0", "k2"])
    deliveries.lost("talker")
    assert used == ["k0"]
    assert sent.commands == [("other", Used("speech", ["k2"]))]
    assert len(deliveries) == 0


def test_an_empty_end_is_forwarded_and_owes_nothing() -> None:
    sent = Sent()
    deliveries = Deliveries(sent, sent.gone)
    deliveries.deliver("thinker", "talker", ("a.0",), ref(None))
    deliveries.discard("thinker", ref(None))
    deliveries.flush()
    assert [stage for stage, _ in sent.commands] == ["talker"]
    assert len(deliveries) == 0


def test_something_is_over_when_the_last_stage_has_answered() -> None:
    sent, over = Sent(), []
    asked = Acknowledgements(sent, sent.gone)
    for name in ("first", "second"):
        commands = {stage: partial(Abort, [name]) for stage in ("thinker", "talker")}
        asked.ask(commands, partial(over.append, name))
    tokens = {c.uids[0]: c.token for _, c in sent.commands if isinstance(c, Abort)}
    assert tokens["first"] != tokens["second"]
    asked.answered("thinker", tokens["first"])
    asked.answered("thinker", tokens["first"])
    assert over == []
    asked.answered("talker", tokens["first"])
    asked.answered("talker", tokens["first"])
    asked.answered("talker", 77)
    assert over == ["first"]
    assert len(asked) == 1


def test_a_stage_that_is_gone_owes_no_answer() -> None:
    sent, over = Sent(), []
    asked = Acknowledgements(sent, sent.gone)
    asked.ask({"talker": partial(Abort, ["a"])}, partial(over.append, "before"))
    sent.gone.add("talker")
    asked.lost("talker")
    assert over == ["before"]
    asked.ask({"talker": partial(Abort, ["a"])}, partial(over.append, "after"))
    assert over == ["before", "after"]
    assert len(sent.commands) == 1


def test_when_no_stage_answers_any_more_everything_is_over() -> None:
    sent, over = Sent(), []
    asked = Acknowledgements(sent, sent.gone)
    for name in ("first", "second"):
        asked.ask({"talker": partial(Abort, [name])}, partial(over.append, name))
    asked.abandon()
    assert over == ["first", "second"]
    assert len(asked) == 0


@pytest.mark.parametrize("aborted", [True, False])
async def test_no_chunk_is_under_way_when_all_is_done(aborted: bool) -> None:
    """C82: the router's table is empty, and every producer knows that it has room again."""
    routing = Routing(STREAMS)
    live = routing.submit()
    for _ in range(3):
        routing["thinker"].ref(uid(live), "speech", end=False)
    routing["talker"].ref(uid(live), "codes", end=False)
    assert routing.router.chunks_under_way == 1  # the talker took what it had been given
    if aborted:
        live.end(None)
        routing["thinker"].ref(uid(live), "speech", end=False)
        routing.acknowledge_all()
        routing["talker"].ref(uid(live), "codes", end=False)
    else:
        routing["thinker"].ref(uid(live), "speech")
        routing["thinker"].finish(uid(live))
        routing["talker"].finish(uid(live))
        routing["code2wav"].use(uid(live))
        routing["talker"].ref(uid(live), "codes")
        routing["code2wav"].audio(uid(live), [0.5])
    assert live.ended.is_set()
    routing.assert_empty()


async def test_a_used_chunk_makes_room_at_its_own_producer() -> None:
    routing = Routing(STREAMS)
    live = routing.submit()
    first = routing["thinker"].ref(uid(live), "speech", end=False)
    routing["talker"].use(uid(live))
    assert routing["thinker"].sent(Used) == [Used("speech", [str(first.key)])]
    assert routing["code2wav"].sent(Used) == []


async def test_what_a_dead_stage_had_is_not_counted_any_more() -> None:
    routing = Routing(STREAMS)
    live = routing.submit()
    routing["thinker"].ref(uid(live), "speech", end=False)
    routing["talker"].die(StageDiedError("gone"))
    routing["talker"].emit(Step([], [], {"speech": ["anything"]}))
    assert routing.router.chunks_under_way == 0
    routing.acknowledge_all()
