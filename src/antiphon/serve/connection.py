"""Connections around their calls: too many, heads that are too long or slow, ends that last.

uvicorn has no bounds of its own there, and `Limits` is asked only once a head is complete.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from antiphon.serve.errors import ApiError

if TYPE_CHECKING:
    from uvicorn.server import Protocols

MAX_HEAD_BYTES = 1 << 16
"""Of a request's line and headers."""
HEAD_TIMEOUT_S = 10.0
"""A connection has to bring its first head by then, and every head its end."""
CLOSE_TIMEOUT_S = 10.0
"""A connection that is to be closed goes without its last bytes if none is taken for so long."""
SURPLUS = 64
"""Connections beyond those that may be, which are still told so; more are closed without a word."""
_SURPLUS_TIMEOUT_S = 1.0


class Connection(HttpToolsProtocol):
    """uvicorn's, which closes what brings no request, and what is beyond `max_sockets`.

    Those are counted that uvicorn knows of: a connection is among them from its first to its last
    moment, also as a WebSocket.
    """

    def __init__(self, *args: Any, max_sockets: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._max_sockets = max_sockets
        self._surplus = False
        self._head_bytes: int | None = 0  # None: amid a body, or between two requests
        self._head_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        excess = len(self.connections) - self._max_sockets
        self._surplus = excess > 0
        if excess > SURPLUS:
            transport.abort()
        elif self._surplus:
            # The error is written once a request begins: before, its sender might not look.
            self._expect_head(timeout_s=_SURPLUS_TIMEOUT_S)
        else:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_no_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._surplus:
            self._refuse(_too_many(self._max_sockets))
            return
        if self._head_bytes is not None:
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(_wrong(431, f"the headers are longer than {MAX_HEAD_BYTES} bytes"))
                return
            self._head_bytes += len(data)  # after the look: what has come may end with a body
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_bytes is None:
            self._expect_head(received=1)

    def on_headers_complete(self) -> None:
        self._expect_no_head()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """In the form that all other errors have."""
        self._refuse(_wrong(400, msg))

    def handle_websocket_upgrade(self) -> None:
        """Refuses what uvicorn would leave open: heads that the WebSocket library cannot read."""
        super().handle_websocket_upgrade()
        upgraded = self.transport.get_protocol()
        if isinstance(upgraded, WebSocketsSansIOProtocol) and not upgraded.handshake_initiated:
            self._refuse(
                _wrong(400, f"this is no WebSocket handshake: {upgraded.conn.handshake_exc}")
            )

    def _expect_head(self, received: int = 0, timeout_s: float | None = None) -> None:
        self._head_bytes = received
        if timeout_s is None:
            timeout_s = HEAD_TIMEOUT_S
        self._head_due = self.loop.call_later(timeout_s, self._late)

    def _expect_no_head(self) -> None:
        self._head_bytes = None
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None

    def _late(self) -> None:
        if self._head_bytes:
            self._refuse(_wrong(408, f"the headers took longer than {HEAD_TIMEOUT_S:g} s"))
        else:
            self.transport.close()

    def _refuse(self, error: ApiError) -> None:
        """Close with an error, or without a word amid the answer to an earlier call."""
        self._expect_no_head()
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()
            return
        answer = error.response()
        lines = [b"%b: %b\r\n" % header for header in answer.raw_headers]
        head = b"HTTP/1.1 %d Refused\r\n%bconnection: close\r\n\r\n"
        self.transport.write(head % (error.status_code, b"".join(lines)) + bytes(answer.body))
        self.transport.close()


class Closings:
    """Ends connections that are to be closed, but whose last bytes nobody takes.

    A transport that is closed waits for its buffer to be empty, for ever if need be.
    """

    def __init__(self) -> None:
        self._held: dict[Protocols, tuple[int, float]] = {}  # bytes, and the time they became those

    def look(self, connections: Iterable[Protocols]) -> None:
        """Abort those of which nothing was taken for `CLOSE_TIMEOUT_S`; to be called every second.

        Whoever is slow but takes something gets the whole.
        """
        now, held = asyncio.get_running_loop().time(), self._held
        self._held = {}
        for connection in list(connections):
            transport = connection.transport
            if not transport.is_closing():
                continue
            size = _untaken(transport)
            last, since = held.get(connection, (None, now))
            if size != last:
                since = now
            if now - since >= CLOSE_TIMEOUT_S:
                transport.abort()
            else:
                self._held[connection] = (size, since)


def _untaken(transport: asyncio.Transport) -> int:
    """Bytes that the other side has not acknowledged.

    The system's own buffer is counted too: it may be megabytes, and takes more only now and then.
    """
    fd = transport.get_extra_info("socket").fileno()
    if fd < 0:
        return 0
    queued = int.from_bytes(fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    return transport.get_write_buffer_size() + queued


def _wrong(status: int, message: str) -> ApiError:
    return ApiError(status, message, code="invalid_request")


def _too_many(limit: int) -> ApiError:
    return ApiError(
        503,
        f"{limit} connections are open, which is as many as may be; try again later",
        code="too_many_connections",
        retry_after_s=1,
    )
