"""What the process of a stage writes: passed on to stderr if asked, and kept for its obituary."""

from __future__ import annotations

import sys
import threading
from typing import IO

_JOIN_S = 1.0  # a process of the stage's own children may hold the pipe open for longer


class StageLog:
    """Reads `stream` to its end in a thread of its own, so that the stage is never held up.

    `echo` puts each line on the caller's stderr, behind the stage's name.
    """

    def __init__(self, stage: str, stream: IO[bytes], *, echo: bool) -> None:
        self._stage = stage
        self._stream = stream
        self._echo = echo
        self._last = ""
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"{stage}-log")
        self._thread.start()

    def last_line(self) -> str:
        """The last line that is not blank; empty if there is none. The process has ended."""
        self._thread.join(_JOIN_S)
        return self._last

    def close(self) -> None:
        """Wait for the rest. The process has ended; may be called twice."""
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        with self._stream:
            for raw in self._stream:
                if line := raw.decode(errors="replace").strip():
                    self._last = line
                    if self._echo:
                        print(f"[{self._stage}] {line}", file=sys.stderr)
