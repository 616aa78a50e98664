"""`bench model` compares like with like, and says so when it does not."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from antiphon.bench.model import FRAMES, QUESTIONS, Generated, measure, request, table
from antiphon.models.qwen3_omni.topology import TOPOLOGY
from antiphon.orchestrator.api import OmniRequest, Reply, Timings
from commands import command

SOUND = np.linspace(-1, 1, 96, dtype=np.float32)


class Ours:
    """A pipeline that answers each question with the same sound."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def generate(self, request: OmniRequest) -> Reply:
        self.asked.append(request.text)
        return Reply("", SOUND, 24_000, "length", Timings(0.5, ttfa_s=0.1 * len(request.text)))


class Theirs:
    """transformers, which takes a second for a call."""

    threads = 2

    def __init__(self, sound: np.ndarray) -> None:
        self.sound = sound
        self.batches: list[list[str]] = []

    def generate(self, questions: Sequence[str]) -> Generated:
        self.batches.append(list(questions))
        return Generated(1.0, [self.sound] * len(questions))


async def test_both_are_asked_the_same() -> None:
    ours, theirs = Ours(), Theirs(SOUND)
    rows = await measure(ours, theirs, (1, 8, 10), rounds=2)
    assert [row.batch for row in rows] == [1, 8, 10]
    assert [len(batch) for batch in theirs.batches] == [1] * 3 + [8] * 3 + [10] * 3  # one warms up
    assert ours.asked == [question for batch in theirs.batches for question in batch]
    assert theirs.batches[-1][8:] == list(QUESTIONS[:2])
    for row in rows:
        assert (row.rounds, row.same_output, row.reference_seconds) == (2, True, 1.0)
        assert (row.threads, row.reference_threads) == (3, 2)
        assert row.speedup > 1
        assert row.reference_frames_per_second == row.batch * FRAMES
        longest = max(len(question) for question in QUESTIONS[: row.batch])
        assert row.ttfa_s == pytest.approx(0.1 * longest)


@pytest.mark.parametrize(
    ("sound", "same"), [(SOUND + 1e-6, True), (SOUND + 0.01, False), (SOUND[1:], False)]
)
async def test_other_sounds_compare_nothing(sound: np.ndarray, same: bool) -> None:
    (row,) = await measure(Ours(), Theirs(sound), (2,), rounds=1)
    assert row.same_output is same
    assert ("DIFFER" in str(table("x", [row]).caption)) is not same


def test_requests_have_a_fixed_length() -> None:
    made = request("What?")
    made.check(TOPOLOGY)
    assert all(each["ignore_eos"] for each in made.sampling.values())


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    """The real thing, one round: equal sounds, and a result file."""
    file = tmp_path / "model.json"
    options = ("--batch", "1,3", "--rounds", "1", "--json", str(file))
    made = subprocess.run(
        command(["bench", "model", "qwen3-omni-tiny", *options]),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    results = json.loads(file.read_text())["results"]
    assert [row["batch"] for row in results] == [1, 3]
    assert all(row["same_output"] and row["speedup"] > 0 for row in results)
    assert "sounds equal" in made.stdout
