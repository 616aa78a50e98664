"""The server's life: a socket, a pipeline, and a stop that lets open calls end first."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import resource
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager

import uvicorn
from fastapi import FastAPI

from antiphon.errors import SettingError
from antiphon.serve.app import create_app
from antiphon.serve.connection import Closings, Connection
from antiphon.serve.service import Service
from antiphon.serve.settings import ServeSettings

STOPPING = (signal.SIGINT, signal.SIGTERM)
_KEEP_ALIVE_S = 5
_CLOSE_S = 3  # for connections after the last call
_BACKLOG = 1024
_OTHER_FILES = 256

Say = Callable[[str], None]  # one line for whoever has started the server


class _Server(uvicorn.Server):
    """Signals are not its business: a stop drains first."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._closings = Closings()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        if counter % 10 == 0:
            self._closings.look(self.server_state.connections)
        return await super().on_tick(counter)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises SettingError if it is not to be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        found.close()
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SettingError(
            f"cannot listen on {host} port {port}: {reason}; choose others with --host and --port"
        ) from error
    return found


def allow_sockets(count: int) -> None:
    """Raise this process's limit of open files for so many sockets, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def url_of(listening: socket.socket) -> str:
    """Where the server is reached from this machine."""
    host, port = listening.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(
    service: Service,
    listening: socket.socket,
    say: Say,
    loading: AbstractContextManager[object],
) -> None:
    """Serve until SIGINT or SIGTERM, then drain; a second signal stops at once.

    The socket answers from the start on: `/health` says "starting" until every stage is ready.
    `loading` is open meanwhile. Raises what keeps the pipeline from starting.
    """
    allow_sockets(service.settings.most_sockets)
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in STOPPING:
        loop.add_signal_handler(number, on_signal)
    try:
        async with listening_on(create_app(service), listening, service.settings):
            say(f"listening on {url_of(listening)}")
            await _serve(service, stop, hurry, say, loading)
    finally:
        for number in STOPPING:
            loop.remove_signal_handler(number)


async def _serve(
    service: Service,
    stop: asyncio.Event,
    hurry: asyncio.Event,
    say: Say,
    loading: AbstractContextManager[object],
) -> None:
    try:
        with loading:
            await _start(service, stop)
        say("ready")
        await stop.wait()
        await _drain(service, hurry, say)
    except _Stopped:
        pass
    finally:
        await service.close()


class _Stopped(Exception):
    """It was to stop while it started."""


async def _start(service: Service, stop: asyncio.Event) -> None:
    """Return when the pipeline serves. Raises _Stopped, and what keeps it from starting."""
    starting = asyncio.ensure_future(service.start())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        starting.cancel()
    try:
        await starting
    except asyncio.CancelledError:
        raise _Stopped from None
    if stop.is_set():
        raise _Stopped


async def _drain(service: Service, hurry: asyncio.Event, say: Say) -> None:
    timeout_s = service.settings.drain_timeout_s
    if service.open_calls:
        say(f"stopping: {service.open_calls} open calls may take {timeout_s:g} s more")
    draining = asyncio.ensure_future(service.drain(timeout_s))
    hurrying = asyncio.ensure_future(hurry.wait())
    await asyncio.wait((draining, hurrying), return_when=asyncio.FIRST_COMPLETED)
    for task in (draining, hurrying):
        task.cancel()
    if service.open_calls:
        say(f"ending {service.open_calls} open calls")


@contextlib.asynccontextmanager
async def listening_on(
    app: FastAPI, listening: socket.socket, settings: ServeSettings
) -> AsyncIterator[None]:
    """uvicorn on this socket, from the first line to the last."""
    config = uvicorn.Config(
        app,
        http=functools.partial(Connection, max_sockets=settings.most_sockets),  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_CLOSE_S,
        ws="websockets-sansio",
        ws_max_size=settings.max_message_bytes,
        server_header=False,
    )
    server = _Server(config)
    running = asyncio.ensure_future(server.serve(sockets=[listening]))
    try:
        yield
    finally:
        server.should_exit = True
        await running
