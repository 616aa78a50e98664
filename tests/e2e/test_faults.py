"""What happens to requests, processes and shared memory when something ends that should not."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon import AsyncOmni, OmniRequest, TextDelta
from antiphon.errors import ShutdownError, StageDiedError
from leftovers import run_files, stage_processes

INTERPRETER_START_S = 1.0  # before that a signal meets Python itself, not the command
CHAT = [sys.executable, "-m", "antiphon.cli.main", "chat", "Tell me about the ocean."]


async def speak_and_kill(omni: AsyncOmni) -> None:
    """Kill the talker's process once the answer has begun."""
    async for event in omni.stream(OmniRequest(text="What is the capital of France?")):
        if isinstance(event, TextDelta):
            os.kill(omni.stage_pids["talker"], signal.SIGKILL)


@pytest.mark.slow
async def test_a_dead_stage_fails_its_requests_and_no_others() -> None:
    """C93: SIGKILL of the talker while it speaks; a text-only request goes on."""
    before = run_files()
    async with AsyncOmni("voice", inputs=("text",)) as omni:
        text_only = asyncio.ensure_future(
            omni.generate(OmniRequest(text="Tell me about the ocean.", modalities=("text",)))
        )
        with pytest.raises(StageDiedError, match="'talker' was killed by signal 9"):
            await speak_and_kill(omni)
        assert (await text_only).text
        with pytest.raises(StageDiedError, match="talker"):
            await omni.generate(OmniRequest(text="Once more?"))
    assert run_files() == before


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
def test_killed_orchestrator_leaves_no_stages_and_its_memory_is_reclaimed(tmp_path: Path) -> None:
    """SIGKILL of the caller: the stages end by themselves, the next start removes the rest."""
    processes = stage_processes()
    process = subprocess.Popen(
        [*CHAT, "--progress", "--out", str(tmp_path / "reply.wav")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert process.stdout.read(1)  # the first text: every stage runs
    mine = stage_processes() - processes
    assert len(mine) == 3
    process.kill()
    process.communicate()
    for pid in mine:
        _wait_gone(pid)
    from antiphon.connector.runs import reclaim_dead_runs

    reclaim_dead_runs()
    assert list(tmp_path.iterdir()) == []


def _wait_gone(pid: int) -> None:
    """Until the process has ended; it is not a child of ours."""
    handle = os.pidfd_open(pid) if Path(f"/proc/{pid}").exists() else None
    if handle is not None:
        import select

        ready, _, _ = select.select([handle], [], [], 30)
        os.close(handle)
        assert ready, f"stage process {pid} outlived its orchestrator"
