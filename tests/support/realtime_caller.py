"""Who talks to `/v1/realtime`: the `openai` package's own client, and what it has been told."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection

from fake_server import FakeServer
from realtime_events import check_all

T = TypeVar("T")
Json = dict[str, Any]


class Caller:
    """One connection; `events` are all that have come so far."""

    def __init__(self, connection: AsyncRealtimeConnection) -> None:
        self.connection = connection
        self.events: list[Json] = []

    async def next(self) -> Json:
        """The next event, with the fields that were sent and no others."""
        async with asyncio.timeout(30):
            event = await self.connection.recv()
        self.events.append(event.to_dict())
        return self.events[-1]

    async def until(self, *types: str) -> list[Json]:
        """Events up to the first one of these types, that one included."""
        found = [await self.next()]
        while found[-1]["type"] not in types:
            found.append(await self.next())
        return found

    async def done(self) -> Json:
        """The response that ends next."""
        return dict((await self.until("response.done"))[-1]["response"])

    async def say(self, text: str) -> Json:
        """A message of the user's; the item that it has become."""
        content = [{"type": "input_text", "text": text}]
        item: Any = {"type": "message", "role": "user", "content": content}
        await self.connection.conversation.item.create(item=item)
        return dict((await self.until("conversation.item.done"))[-1]["item"])

    async def ask(self, text: str) -> Json:
        """Say it, and have it answered; the response."""
        await self.say(text)
        await self.connection.response.create()
        return await self.done()

    async def set(self, **session: Any) -> Json:
        """Change the session; what the server makes of it: `session.updated` or `error`."""
        given: Any = {"type": "realtime", **session}
        await self.connection.session.update(session=given)
        return (await self.until("session.updated", "error"))[-1]

    async def error(self, type: str, **fields: Any) -> Json:
        """Send an event that is wrong; the error that it is answered with."""
        event: Any = {"type": type, "event_id": "mine", **fields}
        await self.connection.send(event)
        event = await self.next()
        assert (event["type"], event["error"]["event_id"]) == ("error", "mine")
        return dict(event["error"])

    def types(self, response_id: str) -> list[str]:
        """The types of a response's events, deltas of a kind counted once."""
        found: list[str] = []
        for event in self.events:
            of = event.get("response_id") or event.get("response", {}).get("id")
            if of == response_id and found[-1:] != [event["type"]]:
                found.append(event["type"])
        return found

    def pcm(self, response_id: str) -> bytes:
        """The sound of a response."""
        return b"".join(
            base64.b64decode(event["delta"])
            for event in self.events
            if event["type"] == "response.output_audio.delta"
            and event["response_id"] == response_id
        )


@contextlib.asynccontextmanager
async def calling(url: str, model: str = "fake", **headers: str) -> AsyncIterator[Caller]:
    """A caller that has been greeted; in the end everything that it was told is looked at."""
    async with (
        AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client,
        client.realtime.connect(model=model, extra_headers=headers) as connection,
    ):
        caller = Caller(connection)
        assert (await caller.next())["type"] == "session.created"
        yield caller
        check_all(caller.events, whole=False)


async def until(server: FakeServer, condition: Callable[[], T]) -> T:
    """As `FakeServer.wait_for`, while this loop goes on."""
    return await asyncio.to_thread(server.wait_for, condition)


class Hands:
    """The stages of a server that answer only when told to."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server

    async def uid(self, stage: str) -> str:
        """What the stage has to do now, once there is something."""
        live = self.server.stages[stage].live
        return await until(self.server, lambda: next(iter(live), ""))

    async def text(self, *token_ids: int, finish: str | None = None) -> None:
        """Words: 1 is one, 2 is two, ..."""
        uid = await self.uid("thinker")
        stage = self.server.stages["thinker"]
        self.server.on_loop(lambda: stage.tokens(uid, *token_ids, finish=finish))

    async def sound(self, seconds: float, finish: str | None = None) -> None:
        uid = await self.uid("code2wav")
        stage, samples = self.server.stages["code2wav"], [0.5] * int(24_000 * seconds)
        self.server.on_loop(lambda: stage.audio(uid, samples, finish=finish))

    async def acknowledge(self) -> None:
        """Every stage lets go of what is to be aborted, once it has been told."""
        for stage in self.server.stages.values():
            await until(self.server, lambda stage=stage: stage.pending_aborts)  # type: ignore[misc]
        for stage in self.server.stages.values():
            self.server.on_loop(stage.acknowledge)
