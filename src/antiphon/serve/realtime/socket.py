"""One WebSocket of `/v1/realtime`: a conversation, its answers, and why it ends."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from antiphon.errors import AntiphonError, InputTooLongError
from antiphon.orchestrator.api import (
    AudioChunk,
    Finished,
    OmniRequest,
    Reply,
    TextDelta,
)
from antiphon.serve import sound_out
from antiphon.serve.calls import deadline_s, trace_headers
from antiphon.serve.errors import ApiError, api_error
from antiphon.serve.realtime.answer import Answer, Outcome
from antiphon.serve.realtime.commands import Begin, Cancel, Command, Forget, Listen
from antiphon.serve.realtime.context import request_of, shorten
from antiphon.serve.realtime.conversation import Conversation
from antiphon.serve.realtime.history import Item, Part
from antiphon.serve.realtime.options import Abilities
from antiphon.serve.realtime.outbox import Outbox
from antiphon.serve.realtime.server_events import Usage
from antiphon.serve.service import Service

# RFC 6455, section 7.4.1
NORMAL, GOING_AWAY, POLICY, DEFECT = 1000, 1001, 1008, 1011


@dataclass(frozen=True, slots=True)
class Close:
    """How the server ends the connection; `flush`: what waits is sent before."""

    code: int
    reason: str
    flush: bool = True


class RealtimeSocket:
    """A caller that has been accepted. `run` returns when the connection is over.

    Raises ApiError in the constructor for a header that makes no sense.
    """

    def __init__(self, socket: WebSocket, service: Service, abilities: Abilities) -> None:
        self._socket, self._service = socket, service
        self._settings = service.settings.realtime
        self._deadline_s = deadline_s(socket.headers, service.settings)
        self._trace = trace_headers(socket.headers)
        self._outbox = Outbox(self._settings.max_unsent_bytes)
        self._conversation = Conversation(
            abilities, self._settings, service.settings.max_audio_s, self._outbox.put
        )
        self._answering: asyncio.Task[None] | None = None
        self._listening: dict[Part, asyncio.Task[None]] = {}
        self._ear = asyncio.Lock()  # one sound at a time is listened to, in their order

    async def run(self) -> None:
        """Serve until the caller goes, is sent away or the server stops; leaves nothing behind."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                await self._serve()
        except BaseExceptionGroup:
            with contextlib.suppress(WebSocketDisconnect):
                await self._socket.close(DEFECT, "internal error")
            raise

    async def _serve(self) -> None:
        self._conversation.open()
        start = self._tasks.create_task
        pump = start(self._outbox.pump(self._socket))
        ways_to_end = [
            start(self._read()),
            start(_until_ended(pump)),
            start(self._until_overflow()),
            start(self._until_drained()),
        ]
        try:
            done, _ = await asyncio.wait(ways_to_end, return_when=asyncio.FIRST_COMPLETED)
            close = next(iter(done)).result()
        finally:
            await _ended(*ways_to_end, *self._work())
        if close is not None:
            await self._close(close, pump)
        await _ended(pump)

    # --- why it ends --------------------------------------------------------------------------

    async def _read(self) -> Close | None:
        """The caller's events, one after the other; None when it has gone."""
        idle_s = self._settings.idle_timeout_s
        while True:
            try:
                async with asyncio.timeout(idle_s):
                    message = await self._socket.receive()
            except TimeoutError:
                if self._answering is not None and not self._answering.done():
                    continue
                reason = f"nothing was said for {idle_s:g} s"
                self._conversation.refuse(ApiError(408, reason, code="session_idle"))
                return Close(NORMAL, reason)
            if message["type"] == "websocket.disconnect":
                return None
            if message.get("text") is None:
                self._conversation.refuse(
                    ApiError(400, "events are text frames; send JSON as text", code="invalid_json")
                )
                continue
            for command in self._conversation.receive(message["text"]):
                await self._do(command)

    async def _until_overflow(self) -> Close:
        await self._outbox.overflowed.wait()
        most = self._settings.max_unsent_bytes
        return Close(POLICY, f"more than {most} bytes waited to be read", flush=False)

    async def _until_drained(self) -> Close:
        """The server stops: what is being answered is answered to its end."""
        await self._service.draining.wait()
        self._conversation.closing = True
        if self._answering is not None:
            await asyncio.wait((self._answering,))
        return Close(GOING_AWAY, "the server is stopping")

    async def _close(self, close: Close, pump: asyncio.Task[None]) -> None:
        if not close.flush:
            self._outbox.drop()
        self._outbox.close()
        await pump
        with contextlib.suppress(WebSocketDisconnect):
            await self._socket.close(close.code, close.reason)

    # --- what is done about the pipeline ------------------------------------------------------

    async def _do(self, command: Command) -> None:
        match command:
            case Begin():
                self._answering = self._tasks.create_task(self._answer(command.answer))
            case Cancel():
                await self._cancel(command.answer)
            case Listen():
                task = self._tasks.create_task(self._listen(command))
                self._listening[command.part] = task
                task.add_done_callback(lambda _: self._listening.pop(command.part))
            case Forget():
                await _ended(*self._hearing(command.item))

    def _work(self) -> list[asyncio.Task[None]]:
        """Everything that runs for this caller."""
        tasks = list(self._listening.values())
        return tasks if self._answering is None else [*tasks, self._answering]

    def _hearing(self, *items: Item) -> list[asyncio.Task[None]]:
        """What is being listened to of these messages."""
        parts = (part for item in items for part in item.parts)
        return [self._listening[part] for part in parts if part in self._listening]

    async def _cancel(self, answer: Answer) -> None:
        """Returns when every stage has let go of it and the caller has its `response.done`."""
        self._outbox.drop_sound(answer.id)
        task = self._answering
        if task is None:
            raise AssertionError("an answer is under way, and nothing works on it")
        if not await self._service.omni.abort(answer.id):
            task.cancel()  # no stage has heard of it yet, or it is over
        await asyncio.wait((task,))
        # A task that is cancelled before its first step does nothing at all.
        self._conversation.finished(answer, Outcome("cancelled"))

    async def _answer(self, answer: Answer) -> None:
        outcome = Outcome("failed", error=ApiError(500, "internal error", code="internal"))
        try:
            if heard := self._hearing(*answer.context):
                await asyncio.wait(heard)
            outcome = await self._stream(answer)
        except AntiphonError as error:
            outcome = Outcome("failed", error=api_error(error))
        except asyncio.CancelledError:
            outcome = Outcome("cancelled")
            raise
        finally:
            self._conversation.finished(answer, outcome)

    async def _stream(self, answer: Answer) -> Outcome:
        while True:
            request = self._stamped(request_of(answer, self._conversation.abilities))
            try:
                return await self._stream_one(answer, request)
            except InputTooLongError:
                if answer.begun or not shorten(answer):
                    raise

    async def _stream_one(self, answer: Answer, request: OmniRequest) -> Outcome:
        rate = self._conversation.abilities.sample_rate
        encoder = sound_out.make_encoder("pcm", rate, streaming=True)
        outcome = Outcome("cancelled")
        async with contextlib.aclosing(self._service.omni.stream(request)) as events:
            async for event in events:
                match event:
                    case TextDelta():
                        answer.on_text(event.text)
                    case AudioChunk():
                        answer.on_sound(await sound_out.feed(encoder, event.samples))
                    case Finished():
                        if event.reply.finish_reason != "abort":
                            answer.on_sound(await sound_out.finish(encoder))
                        outcome = _outcome(event.reply)
        return outcome

    async def _listen(self, listen: Listen) -> None:
        try:
            async with self._ear:
                reply = await self._service.omni.generate(self._stamped(listen.request()))
        except AntiphonError as error:
            self._conversation.not_heard(listen, error)
        else:
            self._conversation.heard(listen, reply.text)

    def _stamped(self, request: OmniRequest) -> OmniRequest:
        """With what came with the connection."""
        return msgspec.structs.replace(
            request, deadline_s=self._deadline_s, trace_headers=self._trace
        )


_ENDINGS = {"length": Outcome("incomplete", "max_output_tokens"), "abort": Outcome("cancelled")}


def _outcome(reply: Reply) -> Outcome:
    read, written = reply.usage.prompt_tokens, reply.usage.completion_tokens
    usage = Usage(input_tokens=read, output_tokens=written, total_tokens=read + written)
    ending = _ENDINGS.get(reply.finish_reason, Outcome("completed"))
    return Outcome(ending.status, ending.reason, usage=usage)


async def _until_ended(task: asyncio.Task[None]) -> None:
    """Without ending it when this is cancelled."""
    await asyncio.wait((task,))


async def _ended(*tasks: asyncio.Task[None] | asyncio.Task[Close | None]) -> None:
    """End these tasks, and wait until they have; their errors have been dealt with elsewhere."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
