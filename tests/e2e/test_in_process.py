"""All stages in one process: the same answer, upstream untouched, the thinker as stock vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(400)  # the first test waits for three engines

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    # Engines of other tests may have run in this process, and left vLLM's variables.
    own = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    environment = own | {
        "PYTHONPATH": str(HERE.parent / "support"),
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    done = subprocess.run(
        [sys.executable, str(HERE / "in_process.py")],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_answers_in_one_process(report: dict[str, Any]) -> None:
    assert report["text"] == "The capital of France is Paris."
    assert report["samples"] > 24_000


def test_upstream_is_what_it_was(report: dict[str, Any]) -> None:
    """AR-INV-004 in the running process, after engines have run."""
    assert report["foreign"] == []


def test_the_callers_environment_is_not_changed(report: dict[str, Any]) -> None:
    # vLLM adds variables of its own to whatever process it runs in; what was there stays.
    assert report["environment"] == []


def test_thinker_alone_equals_stock_vllm(report: dict[str, Any]) -> None:
    assert report["ours"]["alone"] == report["stock"]["alone"]
    assert all(len(ids) == 24 for ids in report["ours"]["alone"])


def test_thinker_in_a_batch_of_eight_equals_stock_vllm(report: dict[str, Any]) -> None:
    assert report["ours"]["batch"] == report["stock"]["batch"]
    assert len({tuple(ids) for ids in report["ours"]["batch"]}) == 8  # the prompts do matter
