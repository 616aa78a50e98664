"""Calls of `/v1/chat/completions`: by OpenAI's client, and by hand over a bare socket."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx2
from openai import OpenAI

from antiphon.stage.messages import Abort, Command
from antiphon.testing.fake_stage import FakeStage
from fake_server import BY_HAND, FakeServer

PATH = "/v1/chat/completions"
ASK: list[Any] = [{"role": "user", "content": "what is it"}]
SOUND: dict[str, Any] = {
    "modalities": ["text", "audio"],
    "audio": {"voice": "alloy", "format": "pcm16"},
}


@contextlib.contextmanager
def openai_client(url: str, *, key: str = "none", timeout_s: float = 60) -> Iterator[OpenAI]:
    """OpenAI's own, as users have it; it does not try again."""
    with OpenAI(base_url=url + "/v1", api_key=key, max_retries=0, timeout=timeout_s) as client:
        yield client


def post(server: FakeServer, headers: dict[str, str] | None = None, **body: Any) -> httpx2.Response:
    """A call of the fake pipeline with this body, over or without `model` and `messages`."""
    whole = {"model": "fake", "messages": ASK} | body
    return httpx2.post(server.url + PATH, json=whole, headers=headers)


def events_of(answer: httpx2.Response) -> list[str]:
    """The data of a stream's events."""
    lines = answer.text.split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") for line in lines)
    return [line.removeprefix("data: ") for line in lines]


@contextlib.contextmanager
def by_hand(**settings: Any) -> Iterator[FakeServer]:
    """A server whose stages do what a test says; what is aborted they acknowledge themselves."""
    with FakeServer(answers=BY_HAND, settings=settings) as server:
        for stage in server.stages.values():
            stage.on_command = partial(_acknowledge, stage)
        yield server
        server.check_clean()


def _acknowledge(stage: FakeStage, command: Command) -> None:
    if isinstance(command, Abort):
        asyncio.get_running_loop().call_soon(stage.acknowledge)


@contextlib.contextmanager
def meanwhile(call: Callable[[], Any]) -> Iterator[concurrent.futures.Future[Any]]:
    """A call that blocks, while the test does something else."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        yield pool.submit(call)


def begun(server: FakeServer) -> str:
    """The uid at the thinker, once there is one."""
    return server.wait_for(lambda: next(iter(server.stages["thinker"].live), ""))


@contextlib.contextmanager
def raw_call(server: FakeServer, **body: Any) -> Iterator[socket.socket]:
    """A call that has been sent, on a connection that the test may treat badly."""
    at = urlsplit(server.url)
    data = json.dumps({"model": "fake", "messages": ASK} | body).encode()
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # for readers who do not read
        raw.settimeout(20)
        raw.connect((at.hostname, at.port))
        raw.sendall(
            b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (PATH.encode(), len(data), data)
        )
        yield raw
