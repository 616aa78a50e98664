"""Answers that are sent while they are made."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class CutOffError(Exception):
    """What makes an answer failed after its first bytes: it must not look like a whole one."""


class Streamed(StreamingResponse):
    """An answer that has begun: its first bytes, and those that follow.

    `rest` has to have been started, so that closing it ends what is behind it. It is closed in
    every case: at its end, when the caller goes away, and when the caller takes nothing any more.
    If it raises CutOffError the connection is closed amid the answer: its last chunk is missing.
    """

    def __init__(
        self, first: bytes, rest: AsyncGenerator[bytes], media_type: str, headers: Mapping[str, str]
    ) -> None:
        super().__init__(
            rest,
            # Proxies would hold it back, or keep it.
            headers={**headers, "cache-control": "no-store", "x-accel-buffering": "no"},
            media_type=media_type,
        )
        self._first = first
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self._rest):
            await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        try:
            async for chunk in self._rest:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except CutOffError:
            return  # the server closes the connection of an answer without an end
        await send({"type": "http.response.body", "body": b"", "more_body": False})
