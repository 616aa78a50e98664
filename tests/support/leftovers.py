"""What a pipeline could leave behind on the machine."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from antiphon.connector.runs import shm_directory
from antiphon.env import SHM_DIR


def own_shared_memory() -> None:
    """Have this process, and all that it starts, keep shared memory in a folder of their own: what
    others do at the same time is then no concern of its tests.
    """
    folder = tempfile.mkdtemp(prefix="antiphon-tests-", dir=shm_directory())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ[SHM_DIR] = folder


def run_files() -> set[Path]:
    """Shared-memory files of all runs that this process and those that it started have made."""
    return set(shm_directory().glob("antiphon-*"))


def stage_processes() -> set[int]:
    """Stage processes that live now, of this process or one that it has started; no zombies."""
    mine = f"{SHM_DIR}={os.environ[SHM_DIR]}".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if b"antiphon.stage.process" in command and mine in environment.split(b"\0"):
                found.add(int(entry.name))
    return found
