"""One running voice pipeline, stages in processes of their own, for all end-to-end tests."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from antiphon import AsyncOmni
from antiphon.connector.runs import shm_directory


def run_files() -> set[Path]:
    """Shared-memory files of all runs on this machine."""
    return set(shm_directory().glob("antiphon-*"))


def stage_processes() -> set[int]:
    """Stage processes that live now, anyone's but a zombie."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"antiphon.stage.process" in command:
                found.add(int(entry.name))
    return found


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def voice() -> AsyncIterator[AsyncOmni]:
    before = dict(os.environ)
    async with AsyncOmni("voice") as omni:
        assert dict(os.environ) == before  # the caller's environment is the caller's
        yield omni

