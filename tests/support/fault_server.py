"""The real server, router and supervision over stages that are real processes without engines."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from antiphon import AsyncOmni, OmniRequest
from antiphon.connector.runs import shm_directory
from antiphon.errors import AntiphonError
from antiphon.orchestrator.api import Finished, TextDelta
from antiphon.orchestrator.clients import OnEvent, OnGone
from antiphon.orchestrator.process import ProcessStage
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.supervision import Supervision
from antiphon.stage.spec import StageSpec
from antiphon.testing.fault_table import Health
from fake_server import FakeServer
from fake_stage_process import START
from source import ROOT

MODULE = "fake_stage_process"
SILENCE_S = 1.5
STEP_LIMIT_S = 1.0
BACKOFF_S = 0.05
# As short as can be told apart on a busy machine: what the table gives is added to them.
QUICK = Supervision(backoff_s=BACKOFF_S, max_backoff_s=BACKOFF_S, silence_s=0, step_s=0)
SUPPORT = str(ROOT / "tests" / "support")


def start_process(
    spec: StageSpec, on_event: OnEvent, on_gone: OnGone, how: str = ""
) -> ProcessStage:
    """A stage's process that starts in this way."""
    environment = {**spec.environment, "PYTHONPATH": SUPPORT, START: how}
    made = msgspec.structs.replace(spec, environment=environment)
    return ProcessStage(made, on_event, on_gone, module=MODULE)


class FaultServer(FakeServer):
    """Started by entering it. `starts` says how each process of a stage starts, the first one
    first; those after the last one start as they should.
    """

    def __init__(
        self,
        *,
        supervision: Supervision = QUICK,
        replicas: Mapping[str, int] | None = None,
        start_timeout_s: float = 20.0,
        starts: Mapping[str, list[str]] | None = None,
        settings: Mapping[str, Any] | None = None,
        ready: bool = True,
    ) -> None:
        self._starts = {name: list(hows) for name, hows in (starts or {}).items()}
        self.notices: list[str] = []
        super().__init__(
            deployment=Deployment(
                supervision=supervision,
                replicas=dict(replicas or {}),
                start_timeout_s=start_timeout_s,
            ),
            settings=settings,
            ready=ready,
        )
        self.omni._notify = self.notices.append

    def _make_client(  # type: ignore[override]
        self, spec: StageSpec, on_event: OnEvent, on_gone: OnGone
    ) -> ProcessStage:
        hows = self._starts.get(spec.name)
        return start_process(spec, on_event, on_gone, hows.pop(0) if hows else "")

    @property
    def pids(self) -> dict[str, int]:
        return self.on_loop(lambda: self.omni.stage_pids)

    def kill(self, stage: str, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.pids[stage], number)

    def replace(self, stage: str) -> None:
        """End its process; another one serves when this returns."""
        before = self.restarts(stage)
        self.kill(stage)
        self.wait_for(lambda: self._restarts(stage) > before)
        self.wait_word(stage, "ready")

    def health(self) -> tuple[Health, dict[str, Any]]:
        """What `/health` says over HTTP, in a word and at length."""
        answer = httpx2.get(self.url + "/health", timeout=10)
        body = answer.json()
        return Health(body["status"], answer.status_code), body

    def wait_health(self, *wanted: Health, timeout_s: float = 10.0) -> dict[str, Any]:
        """Until it has said each of these, in this order; the last one at length."""
        due, left = time.monotonic() + timeout_s, list(wanted)
        while True:
            said, body = self.health()
            if said == left[0]:
                left.pop(0)
                if not left:
                    return body
            assert time.monotonic() < due, f"/health says {said}, and never said {left[0]}"

    def word(self, stage: str) -> str:
        return self.on_loop(lambda: self.omni.stage_states[stage].state)

    def restarts(self, stage: str) -> int:
        return self.on_loop(lambda: self._restarts(stage))

    def _restarts(self, stage: str) -> int:
        return sum(replica.restarts for replica in self.omni.stage_states[stage].replicas)

    def wait_word(self, stage: str, word: str, timeout_s: float = 15.0) -> None:
        self.wait_for(lambda: self.omni.stage_states[stage].state == word, timeout_s)

    def files(self) -> set[Path]:
        """Payloads of the run that lie in shared memory."""
        run = self.omni._run
        return {p for p in shm_directory().glob(f"antiphon-{run}-*") if p.suffix != ".kept"}

    def check_clean(self) -> None:
        """Nothing is left of any call: no request, no chunk under way, no unit, no payload."""
        self.wait_for(lambda: self.omni.num_running == 0 and self.service.open_calls == 0)
        self.wait_for(lambda: self.omni._router.chunks_under_way == 0)
        held = self.run(self.omni.inspect())
        assert {name: found.requests for name, found in held.items()} == dict.fromkeys(held, 0)
        assert self.files() == set()


class Call:
    """A request that runs, and how it ends. `started` is set with its first word."""

    def __init__(self, server: FaultServer, script: str = "", **given: Any) -> None:
        self._server = server
        given.setdefault("modalities", ("text", "audio"))
        self.request = OmniRequest(text="one two", params={"speaker": script}, **given)
        self.started = False
        self.over_s = 0.0
        self.error: AntiphonError | None = None
        self.text = ""
        self._running = asyncio.run_coroutine_threadsafe(self._run(server.omni), server._loop)

    async def _run(self, omni: AsyncOmni) -> None:
        try:
            async with contextlib.aclosing(omni.stream(self.request)) as events:
                async for event in events:
                    self.started |= isinstance(event, TextDelta)
                    if isinstance(event, Finished):
                        self.text = event.reply.text or ""
        except AntiphonError as error:
            self.error = error
        finally:
            self.over_s = time.monotonic()

    def wait(self, timeout_s: float = 15.0) -> None:
        self._running.result(timeout_s)

    def leave(self) -> None:
        """Read no further."""
        self._running.cancel()


def serves(server: FaultServer) -> None:
    """Every kind of request is answered, and nothing is left of any."""
    call = Call(server)
    call.wait()
    assert (call.error, call.text) == (None, "two")
    server.check_clean()


def submitted(server: FaultServer, *scripts: str, **given: Any) -> list[Call]:
    """Requests that every stage on their ways has been told of."""
    before = server.on_loop(lambda: server.omni.num_running)
    calls = [Call(server, script, **given) for script in scripts]
    server.wait_for(lambda: server.omni.num_running == before + len(calls))
    server.run(server.omni.inspect())  # behind the submissions in every stage's queue
    return calls


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """Afterwards no process of a stage and no file in shared memory is there that is new."""
    files, processes = set(shm_directory().glob("antiphon-*")), fake_processes()
    yield
    wait(lambda: not fake_processes() - processes)
    assert set(shm_directory().glob("antiphon-*")) - files == set()


def fake_processes(module: str = MODULE) -> set[int]:
    """Processes that run the module, anyone's but a zombie."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes().split(b"\0")
                if module.encode() in command and _state(entry) not in "ZX":
                    found.add(int(entry.name))
    return found


def _state(entry: Path) -> str:
    return (entry / "stat").read_text().rpartition(")")[2].split()[0]


def wait(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    due = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < due, "it did not become true"
        time.sleep(0.005)
