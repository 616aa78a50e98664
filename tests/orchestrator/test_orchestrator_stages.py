"""Starting and ending stages in processes of their own, without waiting for an engine."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from antiphon.connector.runs import new_run_token
from antiphon.core.options import ConnectorSpec
from antiphon.errors import StageStartError
from antiphon.orchestrator.stage_log import StageLog
from antiphon.orchestrator.stages import StageSet
from antiphon.pipeline.topology import StageKind
from antiphon.stage.spec import StageSpec
from leftovers import run_files, stage_processes
from routing import settle

NAMES = ("near", "far")


def stage_set() -> StageSet:
    run = new_run_token()
    return StageSet(
        {
            name: StageSpec(name, StageKind.AR, "/nowhere", {}, ConnectorSpec("shm", run))
            for name in NAMES
        },
        in_process=False,
        run=run,
        on_event=lambda *_: None,
        on_gone=lambda *_: None,
        on_progress=lambda *_: None,
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
    pid = stages.clients["far"].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(StageStartError, match="'far' was killed by signal 9 while it started"):
        await start
    await stages.stop()
    await stages.stop()  # harmless


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
