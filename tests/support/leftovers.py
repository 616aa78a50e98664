"""What a pipeline could leave behind on the machine."""

from __future__ import annotations

from pathlib import Path

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
