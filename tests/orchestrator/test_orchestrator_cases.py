"""Cases from the field that need routing over fake stages and nothing else."""

from __future__ import annotations

import asyncio
from itertools import permutations

import pytest

from antiphon.errors import PayloadError
from antiphon.orchestrator.api import Finished
from antiphon.stage.messages import Abort, Deliver
from routing import (
    STREAMS,
    Reader,
    Routing,
    drain,
    outcomes,
    reply_of,
    segment_uid,
    session_uid,
    settle,
    uid,
)

ORDERS = [
    order
    for order in permutations(("payload", "control", "talker", "next"))
    if order.index("payload") < order.index("talker")
    and order.index("control") < order.index("next")
]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
async def test_one_end_reaches_the_last_stage_in_any_order(order: tuple[str, ...]) -> None:
    """C58: the parked talker's input ends, the segment ends, the talker ends and the next segment
    begins, in every order that can be.
    """
    routing = Routing(STREAMS)
    async with routing.conversation() as session:
        reader = Reader(session)
        await session.append("one")
        unit = session_uid(routing)
        spoken = segment_uid(unit, 0)
        routing["thinker"].ref(unit, "speech", end=False)
        routing["talker"].ref(spoken, "codes", end=False)
        for event in order:
            match event:
                case "payload":
                    routing["thinker"].ref(unit, "speech", empty=True, epoch=0)
                case "control":
                    routing["thinker"].end_segment(unit)
                case "talker":
                    routing["talker"].finish(spoken)
                    routing["talker"].ref(spoken, "codes", epoch=0)
                case _:
                    await session.append("two")
        refs = [
            ref
            for deliver in routing["code2wav"].sent(Deliver)
            for to, ref in deliver.items
            if to == spoken
        ]
        assert [(ref.seq, ref.end) for ref in refs] == [(0, False), (1, True)]
        assert not [e for e in await reader.new() if isinstance(e.event, Finished)]
        routing["code2wav"].audio(spoken, [0.5])
        ended = [e.segment for e in await reader.new() if isinstance(e.event, Finished)]
        assert ended == [0]
    routing.assert_empty()


async def test_one_abort_among_a_hundred_calls() -> None:
    """C5: the caller after it is served as the one before it."""
    routing = Routing()
    for number in range(100):
        live = routing.submit(modalities=("text",))
        routing["thinker"].tokens(uid(live), 1)
        if number == 40:
            abort = asyncio.create_task(routing.router.abort(live))
            await settle()
            routing.acknowledge_all()
            await abort
        else:
            routing["thinker"].tokens(uid(live), 2, finish="stop")
        reply = reply_of(drain(live))
        expected = ("one", "abort") if number == 40 else ("one two", "stop")
        assert (reply.text, reply.finish_reason) == expected
    routing.assert_empty()


@pytest.mark.parametrize("stage", ["talker", "code2wav"])
async def test_a_failure_in_mid_stream_is_told_once_and_at_once(stage: str) -> None:
    """C8, C60: every other stage of the request hears of it with the same event, downstream or up;
    what is under way of it is given back.
    """
    routing = Routing(STREAMS)
    live = routing.submit()
    routing["thinker"].tokens(uid(live), 1)
    routing["thinker"].ref(uid(live), "speech", end=False)
    routing["talker"].ref(uid(live), "codes", end=False)
    routing["thinker"].fail(uid(live), PayloadError("broken"))
    assert routing[stage].sent(Abort)[0].uids == [uid(live)]
    routing.acknowledge_all()
    (outcome,) = outcomes(drain(live))
    assert isinstance(outcome, PayloadError)
    routing.assert_empty()
