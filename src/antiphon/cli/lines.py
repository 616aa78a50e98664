"""Lines from standard input without a thread, so that a signal can always end the wait."""

from __future__ import annotations

import asyncio
import os


class LineReader:
    """Reads a file descriptor line by line: a terminal, a pipe or a file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = b""
        self._ended = False

    async def line(self) -> str | None:
        """The next line that is not blank, stripped; None at the end."""
        while True:
            head, found, rest = self._buffer.partition(b"\n")
            if found or (self._ended and head):
                self._buffer = rest
                text = head.decode(errors="replace").strip()
                if text:
                    return text
            elif self._ended:
                return None
            else:
                block = await self._read()
                self._ended = not block
                self._buffer += block

    async def _read(self) -> bytes:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        try:
            loop.add_reader(self._descriptor, ready.set)
        except PermissionError:  # a regular file, which is always ready
            return os.read(self._descriptor, 1 << 16)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._descriptor)
        return os.read(self._descriptor, 1 << 16)
