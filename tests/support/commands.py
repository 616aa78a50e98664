"""The command line as a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence

Antiphon = Callable[..., subprocess.CompletedProcess[str]]


def command(arguments: Sequence[str]) -> list[str]:
    """`antiphon ARGUMENTS` in this environment."""
    return [sys.executable, "-m", "antiphon.cli.main", *arguments]
