"""The pipeline by its name, in one process of its own: what callers are given is transformers'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from own_process import report_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # three engines, and transformers


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return report_of(Path(__file__).with_name("qwen2_5_omni_in_process.py"))


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
