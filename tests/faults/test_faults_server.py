"""The server's own process: what is left when it is killed; whom it blames when it was stopped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import httpx2
import pytest

from antiphon.connector.runs import reclaim_dead_runs, shm_directory
from antiphon.testing.fault_table import OK, Fault, Health
from fault_server import SILENCE_S, SUPPORT, fake_processes, nothing_left, wait
from source import ROOT

MAIN = ROOT / "tests" / "support" / "fault_server_main.py"


class ServerProcess:
    """Started by entering it; its stages serve then."""

    def __init__(self, drain_timeout_s: float = 10.0) -> None:
        self._drain_timeout_s = drain_timeout_s
        self.pids: list[int] = []

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            [sys.executable, str(MAIN), str(self._drain_timeout_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": SUPPORT},
        )
        self.url = f"http://127.0.0.1:{self.said('port')}"
        self.pids = self.said("pids")
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.end()

    def said(self, key: str) -> Any:
        """The next line of this kind."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if key in (found := json.loads(line)):
                return found[key]
        raise AssertionError(f"the server ended and never said {key}")

    def call(self, script: str) -> None:
        """Begin a request; every stage has been told of it when this returns."""
        assert self.process.stdin is not None
        self.process.stdin.write(script + "\n")
        self.process.stdin.flush()
        self.said("begun")

    def end(self) -> int:
        """The exit code."""
        assert self.process.stdin is not None
        with self.process:
            with contextlib.suppress(OSError):
                self.process.stdin.close()  # it reads there
            return self.process.wait(20)


@contextlib.contextmanager
def nothing_left_but_files() -> Iterator[None]:
    """No process outlives the server; what it left in memory is removed by the next one's start."""
    before = set(shm_directory().glob("antiphon-*"))
    processes = fake_processes()
    yield
    wait(lambda: not fake_processes() - processes)
    wait(lambda: reclaimed() <= before)  # a process that ends lets go of its run a moment later


def reclaimed() -> set[Path]:
    reclaim_dead_runs()
    return set(shm_directory().glob("antiphon-*"))


def killed(server: ServerProcess, fault: Fault) -> None:
    """SIGKILL: nobody can say anything any more, and the stages end by themselves."""
    began_s = time.monotonic()
    server.process.kill()
    wait(lambda: not fake_processes() & set(server.pids))
    assert time.monotonic() - began_s < (fault.within_s or 0)
    assert (fault.error, fault.health) == (None, ())


@pytest.mark.fault("server-sigkill-idle")
def test_a_killed_server_that_has_nothing_to_do(fault: Fault) -> None:
    with nothing_left_but_files(), ServerProcess() as server:
        killed(server, fault)


@pytest.mark.fault("server-sigkill-loaded")
def test_a_killed_server_with_requests_in_flight(fault: Fault) -> None:
    """C82: one stage is stopped, which hears of no end; a payload lies where nobody takes it."""
    with nothing_left_but_files(), ServerProcess() as server:
        locks = len(set(shm_directory().glob("antiphon-*")))
        server.call("talker=deaf")  # what the thinker has stored for it stays where it is
        wait(lambda: len(set(shm_directory().glob("antiphon-*"))) > locks)
        os.kill(server.pids[1], signal.SIGSTOP)
        killed(server, fault)


@pytest.mark.fault("server-sigterm-loaded")
def test_a_server_that_is_told_to_end_with_calls_open(fault: Fault) -> None:
    """They may go on for a while; then they end, with an error, and so do the stages."""
    call = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    call |= {"modalities": ["text", "audio"], "audio": {"voice": "talker=hold", "format": "pcm16"}}
    drain_s = 0.3
    with (
        nothing_left(),
        ServerProcess(drain_s) as server,
        httpx2.stream("POST", f"{server.url}/v1/chat/completions", json=call) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        began_s = time.monotonic()
        server.process.terminate()
        health = httpx2.get(server.url + "/health")
        assert (Health(health.json()["status"], health.status_code),) == fault.health
        rest = "".join(lines)
        assert fault.error is not None
        assert f'"code":"{fault.error.code}"' in rest.replace(" ", "")
        assert time.monotonic() - began_s < drain_s + (fault.within_s or 0)
        assert server.end() == 0


@pytest.mark.fault("server-sigstop")
def test_a_server_that_was_stopped_blames_nobody(fault: Fault) -> None:
    """For longer than its stages may be silent; or the machine slept."""
    with nothing_left(), ServerProcess() as server:
        server.call("talker=late")
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(1.5 * SILENCE_S)  # what the fault is: time passes
        server.process.send_signal(signal.SIGCONT)
        assert server.said("over") == "done"
        assert fault.error is None
        health = httpx2.get(server.url + "/health")
        assert (Health(health.json()["status"], health.status_code),) == (OK,) == fault.health
        replicas = [r for s in health.json()["stages"].values() for r in s["replicas"]]
        assert [replica["restarts"] for replica in replicas] == [0, 0, 0]
        server.process.terminate()
        assert server.end() == 0
