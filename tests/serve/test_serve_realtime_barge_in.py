"""Interruptions of `/v1/realtime`, step by step: every stage is driven by hand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial

import pytest
from websockets.exceptions import ConnectionClosedOK

from antiphon.stage.messages import Abort, Command
from antiphon.testing.fake_stage import FakeStage
from fake_server import BY_HAND, FakeServer, WordsEntry
from realtime_caller import Caller, Hands, calling, until


@contextlib.asynccontextmanager
async def talking() -> AsyncIterator[tuple[FakeServer, Caller, Hands]]:
    """A caller whose question is being answered: two words, half a second of sound."""
    with FakeServer(answers=BY_HAND) as server:
        hands = Hands(server)
        async with calling(server.url) as caller:
            await caller.say("hello")
            await caller.connection.response.create()
            await hands.text(1, 2)
            await hands.sound(0.5)
            await caller.until("response.output_audio.delta")
            yield server, caller, hands
        server.check_clean()


def aborts(server: FakeServer) -> list[int]:
    return [len(stage.sent(Abort)) for stage in server.stages.values()]


async def test_an_answer_is_cancelled_once_and_every_stage_has_let_go() -> None:
    async with talking() as (server, caller, hands):
        await caller.connection.response.cancel()
        stages = server.stages.values()
        await until(server, lambda: all(stage.pending_aborts for stage in stages))
        # What stages still bring is nobody's: nothing is heard after an interruption.
        await hands.text(3)
        await hands.sound(0.5)
        await hands.acknowledge()
        told = await caller.until("response.done")
        assert "delta" not in " ".join(event["type"] for event in told)
        response = told[-1]["response"]
        assert response["status"] == "cancelled"
        assert response["status_details"]["reason"] == "client_cancelled"
        assert response["output"][0]["content"][0]["transcript"] == "one two"
        assert response["output"][0]["status"] == "incomplete"
        assert aborts(server) == [1, 1, 1]
        error = await caller.error("response.cancel")
        assert error["code"] == "response_cancel_not_active"


async def test_nothing_is_said_of_the_end_before_every_stage_has_acknowledged() -> None:
    async with talking() as (server, caller, _):
        await caller.connection.response.cancel()
        stages = list(server.stages.values())
        await until(server, lambda: all(stage.pending_aborts for stage in stages))
        for stage in stages[:-1]:
            server.on_loop(stage.acknowledge)
        # The server has come to rest: what it had to say it has said.
        server.on_loop(lambda: None)
        assert server.omni.num_running == 1
        server.on_loop(stages[-1].acknowledge)
        assert (await caller.done())["status"] == "cancelled"


async def test_the_next_turn_begins_clean_with_what_was_heard() -> None:
    """Events that follow a cancellation at once are served after it."""
    async with talking() as (_, caller, hands):
        (item,) = [
            e["item"]["id"] for e in caller.events if e["type"] == "response.output_item.added"
        ]
        await caller.connection.response.cancel()
        await caller.connection.conversation.item.truncate(
            item_id=item, content_index=0, audio_end_ms=250
        )
        content = [{"type": "input_text", "text": "and now"}]
        await caller.connection.send(
            {
                "type": "conversation.item.create",
                "item": {"type": "message", "role": "user", "content": content},
            }  # type: ignore[arg-type]
        )
        await caller.connection.response.create()
        await hands.acknowledge()
        told = [event["type"] for event in await caller.until("response.created")]
        assert told[-5:] == [
            "response.done",
            "conversation.item.truncated",
            "conversation.item.added",
            "conversation.item.done",
            "response.created",
        ]
        await hands.text(5, finish="stop")
        assert [m.content for m in WordsEntry.seen[-1].messages] == ["hello", "one", "and now"]
        await hands.uid("code2wav")
        await caller.connection.response.cancel()
        # The thinker has ended by itself; what is left of the request is aborted all the same.
        await hands.acknowledge()
        response = await caller.done()
        assert response["status"] == "cancelled"
        assert response["output"][0]["content"][0]["transcript"] == "five"


async def test_an_answer_that_is_cancelled_as_soon_as_it_is_asked_for() -> None:
    """Whether or not any stage has heard of it by then."""
    with FakeServer(answers=BY_HAND) as server:
        for stage in server.stages.values():
            stage.on_command = partial(_let_go, stage)
        async with calling(server.url) as caller:
            await caller.say("hello")
            for _ in range(5):
                await caller.connection.response.create()
                await caller.connection.response.cancel()
                assert (await caller.done())["output"] == []
        server.check_clean()


def _let_go(stage: FakeStage, command: Command) -> None:
    if isinstance(command, Abort):
        asyncio.get_running_loop().call_soon(stage.acknowledge)


async def test_a_second_response_has_to_wait() -> None:
    async with talking() as (_, caller, hands):
        error = await caller.error("response.create")
        assert error["code"] == "conversation_already_has_active_response"
        (item,) = [
            e["item"]["id"] for e in caller.events if e["type"] == "response.output_item.added"
        ]
        for type_, fields in (
            ("conversation.item.delete", {}),
            ("conversation.item.truncate", {"content_index": 0, "audio_end_ms": 1}),
        ):
            error = await caller.error(type_, item_id=item, **fields)
            assert error["code"] == "item_in_progress"
        # What is said meanwhile comes after it.
        await caller.say("more")
        await caller.connection.response.cancel(response_id="another")
        assert (await caller.next())["error"]["param"] == "response_id"
        await caller.connection.response.cancel()
        await hands.acknowledge()
        await caller.done()


async def test_a_caller_that_goes_away_is_aborted_on_every_stage() -> None:
    async with talking() as (server, caller, hands):
        await caller.connection.close()
        await hands.acknowledge()
        await until(server, lambda: server.service.open_calls == 0)
        assert aborts(server) == [1, 1, 1]
        assert server.service.timelines.latest()[0].cause == "disconnect"


async def test_an_abort_by_the_operator_is_no_completion() -> None:
    async with talking() as (server, caller, hands):
        response = caller.events[-1]["response_id"]
        aborting = asyncio.to_thread(server.run, server.omni.abort(response))
        aborted = asyncio.ensure_future(aborting)
        await hands.acknowledge()
        assert (await caller.done())["status"] == "cancelled"
        assert await aborted


async def test_draining_lets_the_answer_end_and_then_the_connection() -> None:
    with FakeServer(answers=BY_HAND) as server:
        hands = Hands(server)
        async with calling(server.url) as caller, calling(server.url) as idle:
            await caller.set(output_modalities=["text"])
            await caller.say("hello")
            await caller.connection.response.create()
            await hands.text(1)
            draining = asyncio.ensure_future(
                asyncio.to_thread(server.run, server.service.drain(10))
            )
            with pytest.raises(ConnectionClosedOK) as closed:
                await idle.next()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1001
            await caller.say("one more thing")  # a conversation whose answer is not whole goes on
            error = await caller.error("response.create")
            assert error["code"] == "conversation_already_has_active_response"
            await hands.text(2, finish="stop")
            assert (await caller.done())["status"] == "completed"
            with pytest.raises(ConnectionClosedOK) as closed:
                await caller.next()
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (
                1001,
                "the server is stopping",
            )
            assert await draining
        server.check_clean()


async def test_an_answer_that_takes_longer_than_draining_may_fails() -> None:
    async with talking() as (server, caller, hands):
        assert not await asyncio.to_thread(server.run, server.service.drain(0.05))
        closing = asyncio.ensure_future(asyncio.to_thread(server.run, server.service.close()))
        await hands.acknowledge()
        response = await caller.done()
        assert response["status_details"]["error"]["code"] == "shutdown"
        await closing
