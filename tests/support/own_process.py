"""Runs a script of the tests in a process of its own, for what it finds out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def report_of(script: Path) -> dict[str, Any]:
    """The JSON object in the last line of its output."""
    # Engines of other tests may have run in this process, and left vLLM's variables.
    own = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    environment = own | {
        "PYTHONPATH": str(Path(__file__).parent),
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
