"""The server's life: its socket, its start, and the ways to stop it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx2
import pytest

from antiphon.cli.main import main
from antiphon.testing.fault_table import Fault
from source import ROOT

CALL = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": "hi"}]}


class Process:
    """The server with fake stages."""

    def __init__(self, drain_timeout_s: float) -> None:
        support = ROOT / "tests" / "support"
        self.process = subprocess.Popen(
            [sys.executable, str(support / "fake_serve_main.py"), str(drain_timeout_s)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(support)},
        )
        assert self.process.stderr is not None
        listening = re.search(r"http://\S+", self.process.stderr.readline())
        assert listening is not None
        self.url = listening.group()
        assert self.process.stderr.readline() == "ready\n"

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def signal(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def line(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.readline().strip()

    def end(self) -> int:
        with self.process:
            if self.process.poll() is None and self.process.stdin is not None:
                with contextlib.suppress(OSError):
                    self.process.stdin.close()
            return self.process.wait(10)


@contextlib.contextmanager
def running(drain_timeout_s: float = 10) -> Iterator[Process]:
    process = Process(drain_timeout_s)
    try:
        yield process
    finally:
        process.process.kill()
        process.end()


@pytest.mark.fault("server-sigterm-idle")
def test_sigterm_with_nothing_open(fault: Fault) -> None:
    with running() as server:
        began_s = time.monotonic()
        server.signal()
        assert server.end() == 0
        assert time.monotonic() - began_s < (fault.within_s or 0)


def test_open_calls_end_before_the_server_does() -> None:
    """New ones are told to go elsewhere."""
    with (
        running() as server,
        httpx2.stream("POST", server.url + "/v1/chat/completions", json=CALL, timeout=5) as answer,
    ):
        lines = answer.iter_lines()
        assert "data:" in next(lines)
        server.signal()
        assert server.line() == "stopping: 1 open calls may take 10 s more"
        health = httpx2.get(server.url + "/health")
        assert (health.status_code, health.json()["status"]) == (503, "draining")
        refused = httpx2.post(server.url + "/v1/chat/completions", json=CALL)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        assert refused.json()["error"]["code"] == "server_draining"
        server.tell("finish")
        assert list(lines)[-2:] == ["data: [DONE]", ""]
        assert server.end() == 0


@pytest.mark.parametrize("hurry", [True, False])
def test_calls_that_do_not_end_are_ended(hurry: bool) -> None:
    """By a second signal, or when their time is over: with an error, not as if they were whole."""
    with (
        running(30 if hurry else 0.2) as server,
        httpx2.stream("POST", server.url + "/v1/chat/completions", json=CALL, timeout=5) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        server.signal()
        assert server.line().startswith("stopping: 1 open calls")
        if hurry:
            server.signal()
        assert server.line() == "ending 1 open calls"
        rest = "\n".join(lines)
        assert '"code":"shutdown"' in rest.replace(" ", "")
        assert "[DONE]" not in rest
        assert server.end() == 0


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert f"cannot listen on 127.0.0.1 port {port}" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--port", "70000"], "'70000' is no port"),
        (["--port", "x"], "'x' is no port"),
        (["--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
        (["--max-queued", "-1"], "'-1' is not a whole number"),
        (["--max-audio-s", "nan"], "'nan' is not a positive number"),
        (["--pipeline", "voise"], "did you mean voice"),
        (["--modalities", "txt"], "did you mean text"),
        (["--modalities", ""], "--modalities names nothing"),
    ],
)
def test_a_wrong_command_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *arguments]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
