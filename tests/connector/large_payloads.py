"""Large payloads in real shared memory, and another process to share them with."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from antiphon.connector.runs import shm_directory
from antiphon.connector.segments import HEAD, SEGMENT_BYTES
from antiphon.connector.shm import ShmConnector

MIB = 1 << 20
assert SEGMENT_BYTES == MIB

MakeLarge = Callable[..., ShmConnector]

OTHER = """
import sys
from pathlib import Path
from antiphon.connector.shm import ShmConnector
connector = ShmConnector(sys.argv[1], 1 << 30, Path(sys.argv[2]))
view = None
for line in sys.stdin:
    word, key, size = line.split()
    if word == "put":
        connector.put(key, [key[-1].encode() * int(size)])
    elif word == "take":
        view = connector.take(key)
    elif word == "drop":
        view = None
    print("" if view is None else bytes(view) == key[-1].encode() * int(size), flush=True)
"""


class Other:
    """A connector of the same run in another process; what it holds is a view of one payload."""

    def __init__(self, run: str, directory: Path | None = None) -> None:
        folder = shm_directory() if directory is None else directory
        self._process = subprocess.Popen(
            [sys.executable, "-c", OTHER, run, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, word: str, key: str, size: int = MIB) -> str:
        """Do it; the answer says whether the view has `size` bytes, all the key's last letter."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(word, key, size, file=self._process.stdin, flush=True)
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate(timeout=30)


def files(run: str, suffix: str = "") -> list[Path]:
    return sorted(shm_directory().glob(f"antiphon-{run}*{suffix}"))


def kept(run: str) -> set[int]:
    """The files that producers keep, as inodes."""
    return {path.stat().st_ino for path in files(run, ".kept")}


def memory(run: str) -> int:
    """Bytes of all files of the run, the pages that say how long a payload is excepted."""
    found = {path.stat().st_ino: path.stat().st_blocks * 512 for path in files(run)}
    return sum(size - HEAD if size > SEGMENT_BYTES else size for size in found.values())


def round_trip(producer: ShmConnector, consumer: ShmConnector, letter: bytes, size: int) -> None:
    """Put, take and let go of `size` bytes."""
    producer.put("round trip", [letter * size])
    assert bytes(consumer.take("round trip")) == letter * size
