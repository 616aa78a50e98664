"""Connections before there is a call: heads of requests that are too long, too slow or no HTTP.

uvicorn has no bounds of its own there, and `Limits` is asked only once a head is complete.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from antiphon.serve.errors import ApiError

MAX_HEAD_BYTES = 1 << 16
"""Of a request's line and headers."""
HEAD_TIMEOUT_S = 10.0
"""A connection has to bring its first head by then, and every head its end."""


class Connection(HttpToolsProtocol):
    """uvicorn's, which closes what brings no request."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes: int | None = 0  # None: amid a body, or between two requests
        self._head_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_no_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head_bytes is not None:
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431, f"the headers are longer than {MAX_HEAD_BYTES} bytes")
                return
            self._head_bytes += len(data)  # after the look: what has come may end with a body
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_bytes is None:
            self._expect_head(1)

    def on_headers_complete(self) -> None:
        self._expect_no_head()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """In the form that all other errors have."""
        self._refuse(400, msg)

    def _expect_head(self, received: int = 0) -> None:
        self._head_bytes = received
        self._head_due = self.loop.call_later(HEAD_TIMEOUT_S, self._late)

    def _expect_no_head(self) -> None:
        self._head_bytes = None
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None

    def _late(self) -> None:
        if self._head_bytes:
            self._refuse(408, f"the headers took longer than {HEAD_TIMEOUT_S:g} s")
        else:
            self.transport.close()

    def _refuse(self, status: int, message: str) -> None:
        """Close with an error, or without a word amid the answer to an earlier call."""
        self._expect_no_head()
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()
            return
        body = ApiError(status, message, code="invalid_request").to_json()
        head = (
            f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
