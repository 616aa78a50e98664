"""All stages in one process: the same answer, upstream untouched, the thinker as stock vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from own_process import report_of

pytestmark = pytest.mark.timeout(400)  # the first test waits for three engines


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return report_of(Path(__file__).with_name("in_process.py"))


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
