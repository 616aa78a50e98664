"""What waits to be sent to one caller: in order, and bounded."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from antiphon.serve.realtime.server_events import AudioDelta, ServerEvent


@dataclass(frozen=True, slots=True)
class _Message:
    text: str
    sound_of: str | None  # the response that it is sound of


class Outbox:
    """`put` never waits: a caller that lets more than `max_bytes` wait sets `overflowed`."""

    def __init__(self, max_bytes: int) -> None:
        self.overflowed = asyncio.Event()
        self._max_bytes = max_bytes
        self._messages: deque[_Message] = deque()
        self._bytes = 0
        self._closed = False
        self._changed = asyncio.Event()

    @property
    def waiting_bytes(self) -> int:
        return self._bytes

    def put(self, event: ServerEvent) -> None:
        """Send this after everything else. Nothing is taken once it is closed or too full."""
        if self._closed or self.overflowed.is_set():
            return
        sound_of = event.response_id if isinstance(event, AudioDelta) else None
        message = _Message(msgspec.json.encode(event).decode(), sound_of)
        self._messages.append(message)
        self._bytes += len(message.text)
        self._changed.set()
        if self._bytes > self._max_bytes:
            self.overflowed.set()

    def drop_sound(self, response_id: str) -> None:
        """The caller wants to hear no more of this response."""
        self._keep([m for m in self._messages if m.sound_of != response_id])

    def drop(self) -> None:
        """Send nothing of what waits."""
        self._keep([])

    def check_integrity(self) -> None:
        """Raise AssertionError if what waits is miscounted, or too much and nobody is told."""
        if self._bytes != sum(len(message.text) for message in self._messages):
            raise AssertionError("the messages that wait are miscounted")
        if self._bytes > self._max_bytes and not self.overflowed.is_set():
            raise AssertionError("more waits than may")

    def close(self) -> None:
        """Take nothing more; `pump` returns when everything has been sent."""
        self._closed = True
        self._changed.set()

    async def pump(self, socket: WebSocket) -> None:
        """Send until `close`, or until nothing can be sent any more: the caller has gone, or takes
        nothing for too long.
        """
        with contextlib.suppress(WebSocketDisconnect):
            while await self._any():
                message = self._messages.popleft()
                self._bytes -= len(message.text)
                await socket.send_text(message.text)

    async def _any(self) -> bool:
        """Whether something is to be sent, once that is known."""
        while not (self._messages or self._closed):
            self._changed.clear()
            await self._changed.wait()
        return bool(self._messages)

    def _keep(self, messages: list[_Message]) -> None:
        self._messages = deque(messages)
        self._bytes = sum(len(message.text) for message in messages)
