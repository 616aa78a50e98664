"""A server with nothing but the traces, over real sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn
from fastapi import Depends, FastAPI, Request

from antiphon.observe.timelines import Timelines
from antiphon.serve import errors
from antiphon.serve.errors import ApiError
from antiphon.serve.traces import trace_router
from records import VOICE

KEY = "sesame"


@dataclass
class Server:
    """`url` serves `timelines`; `locked` is the same behind a key, `empty` has none."""

    url: str
    timelines: Timelines = field(default_factory=Timelines)

    @property
    def locked(self) -> str:
        return f"{self.url}/locked"

    @property
    def empty(self) -> str:
        return f"{self.url}/empty"


def key_checked(request: Request) -> None:
    if request.headers.get("authorization") != f"Bearer {KEY}":
        raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")


def application(timelines: Timelines) -> FastAPI:
    app = FastAPI()
    errors.install(app)
    app.include_router(trace_router(timelines))
    locked = [Depends(key_checked)]
    app.include_router(trace_router(timelines), prefix="/locked", dependencies=locked)
    app.include_router(trace_router(Timelines()), prefix="/empty")

    @app.get("/other/v1/antiphon/traces/{id}")
    async def other(id: str) -> list[str]:
        return ["another server"]

    @app.get("/broken/v1/antiphon/traces")
    async def broken() -> None:
        raise ApiError(503, "the server is draining")

    return app


@contextmanager
def trace_server() -> Iterator[Server]:
    """A server that keeps `VOICE`."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = Server(f"http://127.0.0.1:{listening.getsockname()[1]}")
        server.timelines.ended(VOICE)
        config = uvicorn.Config(application(server.timelines), log_level="error", lifespan="off")
        serving = uvicorn.Server(config)
        thread = threading.Thread(target=serving.run, kwargs={"sockets": [listening]})
        thread.start()
        due = time.monotonic() + 10
        try:
            while not serving.started:
                assert time.monotonic() < due, "the server did not start"
                threading.Event().wait(0.005)
            yield server
        finally:
            serving.should_exit = True
            thread.join()
