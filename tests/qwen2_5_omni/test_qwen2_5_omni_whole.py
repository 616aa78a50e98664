"""The pipeline by its name, in one process of its own: what callers are given is transformers'."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # three engines, and transformers

HERE = Path(__file__).parent


def run(*arguments: str) -> dict[str, Any]:
    # Engines of other tests may have run in this process, and left vLLM's variables.
    own = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    environment = own | {
        "PYTHONPATH": str(HERE.parent / "support"),
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    done = subprocess.run(
        [sys.executable, str(HERE / "qwen2_5_omni_in_process.py"), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return run()


def test_answers_sound_as_in_transformers(report: dict[str, Any]) -> None:
    """Bit by bit, also with another speaker and seed."""
    assert report["sounds"] == [True, True]
    assert report["speaker"] is True
    assert report["rate"] == 24_000


def test_text_alone_is_the_same_text(report: dict[str, Any]) -> None:
    assert report["text"] == [True, True]


def test_it_samples_as_the_topology_says(report: dict[str, Any]) -> None:
    """With penalty, top-k and top-p; 2 positions of 8 samples for each of 20 codes at most."""
    assert 0 < report["sampled"] <= 20 * 16


def test_mistakes_of_a_request_are_told(report: dict[str, Any]) -> None:
    assert "the checkpoint's speakers are Chelsie, Ethan" in report["nobody"]
    assert report["nobody"].startswith("invalid_parameter: ")
    assert "takes no parameter 'accent'" in report["unknown"]


def test_a_stream_of_codes_is_refused_at_the_start() -> None:
    told = run("stream")["stream"]
    assert told.startswith("deployment: ")
    assert "edges.codes.mode" in told
    assert "use full" in told
