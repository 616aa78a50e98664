"""Starting and ending stages in processes of their own, without waiting for an engine."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable

import pytest

from antiphon.connector.runs import new_run_token
from antiphon.core.options import ConnectorSpec
from antiphon.errors import StageStartError
from antiphon.orchestrator.clients import OnEvent, OnGone, StageClient
from antiphon.orchestrator.replica import Replica
from antiphon.orchestrator.stage_log import StageLog
from antiphon.orchestrator.stages import MakeClient, StageSet
from antiphon.orchestrator.tasks import Progress
from antiphon.pipeline.supervision import Supervision
from antiphon.pipeline.topology import StageKind
from antiphon.stage.messages import Command, Ready
from antiphon.stage.spec import StageSpec
from leftovers import run_files, stage_processes
from routing import settle

NAMES = ("near", "far")


class Deaf:
    """Nobody wants to know."""

    def on_event(self, *_: object) -> None: ...

    def on_gone(self, *_: object) -> None: ...

    def on_back(self, *_: object) -> None: ...


def stage_set(
    on_progress: Progress = lambda *_: None,
    clock: Callable[[], float] = time.monotonic,
    make_client: MakeClient | None = None,
) -> StageSet:
    run = new_run_token()
    return StageSet(
        {
            Replica(name): StageSpec(name, StageKind.AR, "/nowhere", {}, ConnectorSpec("shm", run))
            for name in NAMES
        },
        Deaf(),
        run=run,
        supervision=Supervision(),
        on_progress=on_progress,
        make_client=make_client,
        clock=clock,
    )


async def test_a_start_that_takes_too_long_names_the_stages_and_leaves_nothing() -> None:
    files, processes = run_files(), stage_processes()
    stages = stage_set()
    with pytest.raises(StageStartError, match=r"not ready after 0.05 s: stage 'near', 'far'"):
        await stages.start(0.05)
    began = time.monotonic()
    await stages.stop()
    assert time.monotonic() - began < 5  # what still loads is not waited for
    assert stage_processes() == processes
    assert run_files() == files


async def test_a_stage_that_dies_while_it_starts_is_named() -> None:
    stages = stage_set()
    start = asyncio.create_task(stages.start(60))
    await settle()
    pid = stages.clients[Replica("far")].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(StageStartError, match="'far' was killed by signal 9 while it started"):
        await start
    await stages.stop()
    await stages.stop()  # harmless


class Prompt(StageClient):
    """A stage that is ready at once; it says itself that this took no time."""

    def __init__(self, spec: StageSpec, on_event: OnEvent, on_gone: OnGone) -> None:
        ready = Ready(max_model_len=8, num_blocks=1, block_size=8, vllm_version="")
        on_event(spec.name, ready, ())

    def send(self, command: Command) -> None: ...

    def stop(self, timeout_s: float) -> None: ...


async def test_a_stage_is_ready_so_long_after_its_start_was_ordered() -> None:
    """Its process and what it imports are part of that."""
    seen: list[tuple[str, str]] = []
    clock = iter((100.0, 101.0, 103.0, 105.5)).__next__
    stages = stage_set(lambda *said: seen.append(said), clock, Prompt)
    await stages.start(60)
    await stages.stop()
    assert seen[-2:] == [("near", "ready after 3.0 s"), ("far", "ready after 4.5 s")]


@pytest.mark.parametrize("echo", [True, False])
def test_a_stages_log_goes_on_to_stderr_if_asked(
    capsys: pytest.CaptureFixture[str], echo: bool
) -> None:
    reader, writer = os.pipe()
    log = StageLog("near", os.fdopen(reader, "rb"), echo=echo)
    with os.fdopen(writer, "wb") as stream:
        stream.write(b"one\n\n  two\xff  \n\n")
    assert log.last_line() == "two�"
    log.close()
    assert capsys.readouterr().err == ("[near] one\n[near] two�\n" if echo else "")
