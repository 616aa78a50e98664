"""What the tool's own process and its stages leave on the machine. Linux alone."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Collection
from pathlib import Path

from antiphon.bench.soak_record import Process
from antiphon.connector.runs import shm_directory

_PAGE = os.sysconf("SC_PAGE_SIZE")
_STATM = Path("/proc/self/statm")
_DESCRIPTORS = Path("/proc/self/fd")
_POOLS = re.compile(r"(asyncio|prompts|ThreadPoolExecutor-\d+)_\d+")
_LOCK = re.compile(r"antiphon-(\w+)\.lock")


def resident_bytes() -> int:
    """Of this process, shared memory that it has mapped included."""
    return int(_STATM.read_text().split()[1]) * _PAGE


def threads() -> list[str]:
    """Names of Python's threads, without those of pools: these come with work, up to a bound."""
    names = (thread.name for thread in threading.enumerate())
    return sorted(name for name in names if not _POOLS.fullmatch(name))


def descriptors() -> list[str]:
    """What each open descriptor leads to, without numbers that are never the same."""
    found = []
    for entry in _DESCRIPTORS.iterdir():
        try:
            found.append(re.sub(r"\[\d+\]", "", str(entry.readlink())))
        except FileNotFoundError:
            continue  # the one that the folder was read with
    return sorted(found)


def process() -> Process:
    """This process now."""
    return Process(resident_bytes(), tuple(threads()), tuple(descriptors()))


def runs() -> set[str]:
    """The runs whose locks this process holds."""
    names = (Path(target).name for target in descriptors())
    return {match[1] for name in names if (match := _LOCK.fullmatch(name))}


def files_of(names: Collection[str]) -> tuple[str, ...]:
    """Files of these runs in shared memory."""
    directory = shm_directory()
    return tuple(sorted(p.name for run in names for p in directory.glob(f"antiphon-{run}[-.]*")))


def alive(pids: Collection[int]) -> tuple[int, ...]:
    """Processes of the sessions that these led: themselves, zombies too, and what they started."""
    return tuple(sorted(pid for pid in _all_pids() if _session_of(pid) in pids))


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None
