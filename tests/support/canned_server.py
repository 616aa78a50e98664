"""A server that answers every call with the same bytes, for clients of servers other than ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager


def head(content_type: str, status: str = "200 OK", *, chunked: bool = False) -> bytes:
    """An answer's beginning; its body is in chunks, or ends with the connection."""
    way = "transfer-encoding: chunked" if chunked else "connection: close"
    return f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\n{way}\r\n\r\n".encode()


@asynccontextmanager
async def canned_server(pieces: Sequence[bytes]) -> AsyncIterator[str]:
    """Its address; every piece is sent by itself."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        lengths = [line for line in request.split(b"\r\n") if b"content-length" in line.lower()]
        if lengths:
            await reader.readexactly(int(lengths[0].split(b":")[1]))
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"
