"""Servers that a benchmark starts itself, each in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from antiphon.errors import StageStartError

_START_S = 600.0
_STOP_S = 30.0
_POLL_S = 0.2
_LOG_LINES = 20


class ServerProcess:
    """Started by entering it, which waits until `GET /health` is 200; ended by leaving it.

    Its output goes to the file `log`. It has a session of its own, so that Ctrl-C is for whoever
    started it. Raises StageStartError if it does not come up.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        port: int,
        log: Path,
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._name = name
        self.arguments = arguments
        self.environment = environment
        self._log = log
        self._process: asyncio.subprocess.Process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def __aenter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(self.environment),
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(_START_S):
                await self._ready()
        except TimeoutError:
            await self._stop()
            raise StageStartError(
                f"{self._name} was not ready after {_START_S:g} s:\n{self._last_lines()}"
            ) from None
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stop()

    async def _ready(self) -> None:
        """Raises StageStartError if the process ends first."""
        async with aiohttp.ClientSession() as session:
            while not await self._healthy(session):
                if self._process.returncode is not None:
                    raise StageStartError(f"{self._name} has ended:\n{self._last_lines()}")
                await asyncio.sleep(_POLL_S)

    async def _healthy(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(self.url + "/health") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    async def _stop(self) -> None:
        if self._process.returncode is None:
            self._process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _STOP_S)
        # What it has started and not ended, or itself.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    def _last_lines(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES:])


def free_port() -> int:
    """One of this machine's that nobody listened on a moment ago."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port
