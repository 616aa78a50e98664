"""`antiphon serve` in a process of its own, as users start it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from typing import Self

import httpx2

_START_S = 110  # less than a test's own limit


class LiveServer:
    """Started by entering it; it is ready then. Its log goes to `lines`."""

    def __init__(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self._arguments = arguments
        self._environment = environment or {}
        self.lines: list[str] = []
        self.url = ""

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "antiphon.cli.main", "serve", "--port", "0", *self._arguments],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **self._environment},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        due = time.monotonic() + _START_S
        while not self._ready():
            if self.process.poll() is not None or time.monotonic() > due:
                self.stop()
                raise AssertionError("the server did not start:\n" + "\n".join(self.lines))
            threading.Event().wait(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it with a signal; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(60)
        self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            if found := re.search(r"listening on (http://\S+)", line):
                self.url = found.group(1)

    def _ready(self) -> bool:
        if not self.url:
            return False
        return httpx2.get(self.url + "/health", timeout=20).status_code == 200
