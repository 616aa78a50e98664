"""Server-sent events (WHATWG HTML, 9.2): lines of JSON, one after the other as they are made."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from antiphon.errors import AntiphonError
from antiphon.serve.errors import ApiError, api_error

MEDIA_TYPE = "text/event-stream"
DONE = b"data: [DONE]\n\n"
"""The end of an answer that is whole; none of another."""


def event(json: bytes) -> bytes:
    """One event."""
    return b"data: %b\n\n" % json


def error_event(error: AntiphonError | ApiError) -> bytes:
    """The end of an answer that failed while it was under way; OpenAI's clients raise it."""
    answer = error if isinstance(error, ApiError) else api_error(error)
    return event(answer.to_json())


class EventStream(StreamingResponse):
    """An answer that has begun: its first bytes, and those that follow.

    `rest` has to have been started, so that closing it ends what is behind it. It is closed in
    every case: at its end, when the caller goes away, and when the caller takes nothing any more.
    """

    def __init__(
        self, first: bytes, rest: AsyncGenerator[bytes], headers: Mapping[str, str]
    ) -> None:
        super().__init__(
            rest,
            # Proxies would hold events back, or keep them.
            headers={**headers, "cache-control": "no-store", "x-accel-buffering": "no"},
            media_type=MEDIA_TYPE,
        )
        self._first = first
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self._rest):
            await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        async for chunk in self._rest:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
