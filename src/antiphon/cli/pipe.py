"""Bytes into a pipe without a thread, so that a slow reader holds up nothing else."""

from __future__ import annotations

import asyncio
import os
import select

from antiphon.errors import OutputPathError


class PipeWriter:
    """Writes to a file descriptor as fast as its reader takes it; the rest waits here.

    No more than PIPE_BUF bytes at a time: so many never block once the descriptor is reported
    writable, and its flags, which it may share with other processes, stay as they are.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting = bytearray()
        self._idle = asyncio.Event()
        self._idle.set()
        self._error: BrokenPipeError | OutputPathError | None = None

    def write(self, data: bytes) -> None:
        """Queue `data`; it leaves as soon as there is room. Does not block.

        Raises BrokenPipeError once the reader was seen to be gone, OutputPathError if the
        descriptor could not be written.
        """
        self._raise_error()
        self._waiting += data
        if self._waiting and self._idle.is_set():
            self._start()
            self._raise_error()

    async def drain(self) -> None:
        """Wait until everything has left. Raises as `write`."""
        await self._idle.wait()
        self._raise_error()

    def drop(self) -> None:
        """Forget what has not left."""
        self._waiting.clear()
        self._stop()

    def _start(self) -> None:
        try:
            asyncio.get_running_loop().add_writer(self._descriptor, self._write_some)
        except PermissionError:  # a regular file, which is always ready
            while self._waiting:
                self._write_some()
        else:
            self._idle.clear()

    def _write_some(self) -> None:
        try:
            count = os.write(self._descriptor, self._waiting[: select.PIPE_BUF])
        except BrokenPipeError as error:
            self._error = error
        except OSError as error:
            self._error = OutputPathError(f"standard output cannot be written: {error.strerror}")
        else:
            del self._waiting[:count]
        if self._error is not None:
            self.drop()
        elif not self._waiting:
            self._stop()

    def _stop(self) -> None:
        if not self._idle.is_set():
            asyncio.get_running_loop().remove_writer(self._descriptor)
            self._idle.set()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
