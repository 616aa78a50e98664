"""What callers of `/v1/realtime` may not do, and how a conversation ends that is not closed."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK

from antiphon.serve.realtime.settings import RealtimeSettings
from antiphon.testing.fake_stage import Answer
from fake_server import ANSWERS, BY_HAND, FakeServer
from realtime_caller import Hands, calling, until

HELLO = {
    "type": "conversation.item.create",
    "item": {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "hello"}],
    },
}


def raw(server: FakeServer, **options: Any) -> connect:
    # Without compression: sound that is always the same would take no room.
    url = server.url.replace("http", "ws") + "/v1/realtime"
    return connect(url, compression=None, **options)


async def tell(connection: ClientConnection, *events: dict[str, Any]) -> None:
    for event in events:
        await connection.send(json.dumps(event))


def slow_socket(server: FakeServer) -> socket.socket:
    """A connection that holds little between its ends."""
    host, port = server.url.removeprefix("http://").split(":")
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    found.connect((host, int(port)))
    found.setblocking(False)
    return found


async def test_a_message_that_is_too_large_closes_the_connection() -> None:
    with FakeServer(settings={"max_message_bytes": 1000}) as server:
        async with raw(server) as connection:
            await connection.recv()
            await connection.send("x" * 1001)
            with pytest.raises(ConnectionClosed) as closed:
                await connection.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1009
        server.check_clean()


async def test_who_says_nothing_is_disconnected() -> None:
    """An answer is waited for, however long it takes."""
    idle = {"realtime": RealtimeSettings(idle_timeout_s=0.5)}
    with FakeServer(answers=BY_HAND, settings=idle) as server:
        async with raw(server) as connection:
            text = {"output_modalities": ["text"]}
            await tell(connection, HELLO, {"type": "response.create", "response": text})
            await Hands(server).text(1)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.5):
                    await _read_all(connection)
            await Hands(server).text(2, finish="stop")
            with pytest.raises(ConnectionClosedOK) as closed:
                await _read_all(connection)
            assert closed.value.rcvd is not None
            assert "0.5 s" in closed.value.rcvd.reason
        server.check_clean()


async def test_a_slow_reader_is_disconnected_and_the_answer_ended() -> None:
    small = {"realtime": RealtimeSettings(max_unsent_bytes=200_000)}
    with FakeServer(answers=BY_HAND, settings=small) as server:
        hands = Hands(server)
        async with raw(server, sock=slow_socket(server), max_queue=1) as connection:
            await tell(connection, HELLO, {"type": "response.create"})
            stage = server.stages["code2wav"]
            while not stage.pending_aborts:
                await hands.sound(2.0)
            await hands.acknowledge()
            await until(server, lambda: server.omni.num_running == 0)
            with pytest.raises(ConnectionClosed) as closed:
                await _read_all(connection)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1008
            assert "200000 bytes" in closed.value.rcvd.reason
        server.check_clean()


async def _read_all(connection: ClientConnection) -> None:
    while True:
        await connection.recv()


async def test_who_reads_nothing_at_all_is_given_up() -> None:
    small = {"realtime": RealtimeSettings(max_unsent_bytes=200_000), "write_timeout_s": 0.3}
    answers = {**ANSWERS, "code2wav": Answer(samples=(0.25,) * 2_000_000)}
    with FakeServer(answers=answers, settings=small) as server:
        async with raw(server, sock=slow_socket(server), max_queue=1) as connection:
            await tell(connection, HELLO, {"type": "response.create"})
            await until(server, lambda: server.stages["code2wav"].commands)
            await until(server, lambda: server.service.open_calls == 0)
            server.check_clean()
            connection.transport.abort()


async def test_callers_count_as_connections() -> None:
    with FakeServer(settings={"max_connections": 1}) as server:
        async with calling(server.url):
            with pytest.raises(Exception, match="503"):
                async with calling(server.url):
                    pass
        server.check_clean()


async def test_twenty_conversations_with_interruptions() -> None:
    """Whatever they do and when they go, each answer has one end, and nothing is left."""
    with FakeServer() as server:
        await asyncio.gather(*(_talk(server, random.Random(seed)) for seed in range(20)))
        server.check_clean()
        assert not server.omni.late_outputs


async def _talk(server: FakeServer, chance: random.Random) -> None:
    async with calling(server.url) as caller:
        for _ in range(3):
            await caller.say("hello")
            await caller.connection.response.create()
            match chance.randrange(4):
                case 0:
                    await caller.done()
                case 1:
                    await caller.connection.response.cancel()
                    await caller.done()
                case 2:
                    await caller.until("response.output_audio_transcript.delta", "response.done")
                    await caller.connection.response.cancel()
                    if caller.events[-1]["type"] != "response.done":
                        await caller.done()
                case _:
                    if chance.random() < 0.3:
                        return
                    await caller.connection.response.create()
                    for _ in range(2):  # each has one end: an error if the first still ran
                        await caller.until("error", "response.done")
