"""What happens to requests, processes and shared memory when something ends that should not."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from antiphon import AsyncOmni, Deployment, OmniRequest
from antiphon.connector.runs import reclaim_dead_runs
from antiphon.errors import ShutdownError
from antiphon.pipeline.supervision import Supervision
from antiphon.serve.service import Service
from antiphon.serve.settings import ServeSettings
from antiphon.testing.fault_table import OK, Fault
from asked import Asked, alive, says
from leftovers import run_files, stage_processes

SILENCE_S = 5.0
SPOKEN = OmniRequest(text="Tell me about the ocean.")
WRITTEN = OmniRequest(text="Why is the sky blue?", modalities=("text",))
INTERPRETER_START_S = 1.0  # before that a signal meets Python itself, not the command
CHAT = [sys.executable, "-m", "antiphon.cli.main", "chat", "Tell me about the ocean."]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[Service]:
    """The voice pipeline as it is served, watched more closely, and started again at once."""
    supervision = Supervision(
        restarts=100, backoff_s=0.1, max_backoff_s=0.1, silence_s=SILENCE_S, step_s=0
    )
    files, processes = run_files(), stage_processes()
    omni = AsyncOmni("voice", inputs=("text",), deployment=Deployment(supervision=supervision))
    service = Service(omni, ServeSettings(port=0))
    await service.start()
    yield service
    await service.close()
    assert stage_processes() == processes
    assert run_files() == files


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("stage", ["thinker", "talker", "code2wav"])
@pytest.mark.parametrize(
    ("number", "loaded"),
    [
        pytest.param(signal.SIGKILL, False, marks=pytest.mark.fault("stage-sigkill-idle")),
        pytest.param(signal.SIGTERM, False, marks=pytest.mark.fault("stage-sigterm-idle")),
        pytest.param(signal.SIGSTOP, False, marks=pytest.mark.fault("stage-sigstop-idle")),
        pytest.param(signal.SIGKILL, True, marks=pytest.mark.fault("stage-sigkill-loaded")),
        pytest.param(signal.SIGTERM, True, marks=pytest.mark.fault("stage-sigterm-loaded")),
        pytest.param(signal.SIGSTOP, True, marks=pytest.mark.fault("stage-sigstop-loaded")),
    ],
)
async def test_a_stage_of_a_pipeline_that_serves(
    served: Service, fault: Fault, number: signal.Signals, loaded: bool, stage: str
) -> None:
    """C93: of eight requests in flight those that need the stage fail, and only they; then another
    process serves, and nothing is left of the first.
    """
    omni, files = served.omni, len(run_files())
    old, restarts = omni.stage_pids[stage], restarts_of(omni, stage)
    spoken = [Asked(omni, SPOKEN) for _ in range(4)] if loaded else []
    written = [Asked(omni, WRITTEN) for _ in range(4)] if loaded else []
    for request in spoken + written:
        await request.begun.wait()
    began_s = time.monotonic()
    os.kill(old, number)
    await says(served, [*fault.health, OK], 120)
    for request in spoken + written:
        await request.task
    failed = [request for request in spoken + written if request.error is not None]
    assert bool(failed) == (fault.error is not None)
    limit_s = (fault.within_s or 0) + (SILENCE_S if fault.after else 0)
    for request in failed:
        assert type(request.error) is fault.error
        assert f"'{stage}'" in str(request.error)
        assert request.over_s - began_s < limit_s
    if stage != "thinker":
        assert not any(request in failed for request in written)
    assert fault.restarted
    assert restarts_of(omni, stage) == restarts + 1
    assert not alive(old)
    after = Asked(omni, OmniRequest(text="What is the capital of France?"))
    await after.task
    assert after.error is None
    assert after.reply is not None
    assert after.reply.audio is not None
    held = await omni.inspect()
    assert {name: found.requests for name, found in held.items()} == dict.fromkeys(held, 0)
    assert len(run_files()) == files


def restarts_of(omni: AsyncOmni, stage: str) -> int:
    return omni.stage_states[stage].replicas[0].restarts


@pytest.mark.slow
async def test_closing_fails_what_runs() -> None:
    omni = AsyncOmni("voice", entries=("chat",), modalities=("text",))
    await omni.start()
    running = asyncio.ensure_future(
        omni.generate(OmniRequest(text="Tell me about the ocean.", modalities=("text",)))
    )
    await omni.inspect()  # the request has been submitted by then
    assert omni.num_running == 1
    await omni.close()
    with pytest.raises(ShutdownError):
        await running
    await omni.close()  # harmless


def interrupted_chat(folder: Path, number: int, after_s: float) -> int:
    """Run the command, send the signal, and return the exit code."""
    process = subprocess.Popen(
        [*CHAT, "--out", str(folder / "reply.wav")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=folder,
    )
    try:
        process.wait(after_s)
    except subprocess.TimeoutExpired:
        process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    if after_s >= INTERPRETER_START_S:
        assert b"Traceback" not in errors, errors.decode()
    return process.returncode


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_at_any_moment_leave_nothing(tmp_path: Path, number: int) -> None:
    files, processes = run_files(), stage_processes()
    chance = random.Random(number)
    for after_s in (0.05, 0.3, 1.0, *(chance.uniform(2.0, 40.0) for _ in range(3))):
        code = interrupted_chat(tmp_path, number, after_s)
        if after_s >= INTERPRETER_START_S:
            assert code in (0, 128 + number), after_s
        assert stage_processes() == processes, after_s
        assert run_files() == files, after_s
        left = [p.name for p in tmp_path.iterdir()]
        assert left == (["reply.wav"] if code == 0 else []), after_s
        for path in tmp_path.iterdir():
            path.unlink()


@pytest.mark.slow
@pytest.mark.fault("server-sigkill-loaded")
def test_killed_orchestrator_leaves_no_stages_and_its_memory_is_reclaimed(
    tmp_path: Path, fault: Fault
) -> None:
    """SIGKILL of the caller: the stages end by themselves, also one that is stopped; the next start
    removes the rest.
    """
    files, processes = run_files(), stage_processes()
    process = subprocess.Popen(
        [*CHAT, "--progress", "--out", str(tmp_path / "reply.wav")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert process.stdout.read(1)  # the first text: every stage runs
    mine = stage_processes() - processes
    assert len(mine) == 3
    os.kill(min(mine), signal.SIGSTOP)
    began_s = time.monotonic()
    process.kill()
    process.communicate()
    for pid in mine:
        _wait_gone(pid)
    assert time.monotonic() - began_s < (fault.within_s or 0)
    reclaim_dead_runs()
    assert run_files() == files
    assert list(tmp_path.iterdir()) == []


def _wait_gone(pid: int) -> None:
    """Until the process has ended; it is not a child of ours."""
    handle = os.pidfd_open(pid) if Path(f"/proc/{pid}").exists() else None
    if handle is not None:
        import select

        ready, _, _ = select.select([handle], [], [], 30)
        os.close(handle)
        assert ready, f"stage process {pid} outlived its orchestrator"
