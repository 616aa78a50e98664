"""The benchmark of a step's outputs: the engines do the same work, but for what they feed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from antiphon.bench import worker
from antiphon.bench.worker import NOTHING, ROWS, TOKENS, Row, main, row
from antiphon.worker import cpu  # noqa: F401  a second's import that is no part of any test


# Upstream looks at every attribute of torch.distributed when it makes a worker.
@pytest.mark.filterwarnings("ignore:`torch.distributed.reduce_op` is deprecated:FutureWarning")
def test_main_prints_a_table_and_writes_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every request of the engines that feed an edge sends a chunk per step; of the other, none."""
    monkeypatch.setattr(worker, "REQUESTS", 3)
    monkeypatch.setattr(worker, "TURNS", 20)
    path = tmp_path / "results.json"
    assert main(path) == 0
    written = json.loads(path.read_text())
    assert set(written) == {"results", "machine", "versions", "command"}
    rows = written["results"]
    assert [(r["feeds"], r["chunks"]) for r in rows] == [(NOTHING, 0), (TOKENS, 3), (ROWS, 3)]
    assert all((r["requests"], r["turns"]) == (3, 20) for r in rows)
    assert (rows[0]["ratio"], rows[0]["added_us"]) == (1, 0)
    assert all(0.3 < r["ratio"] < 10 for r in rows)
    printed = capsys.readouterr().out
    for text in (NOTHING, TOKENS, ROWS, "added µs"):
        assert text in printed


def test_ratio_and_difference_are_medians_over_turns() -> None:
    """One disturbed turn moves neither."""
    made = row(TOKENS, 8, 24, [1e-3, 2e-3, 3e-3], [1.5e-3, 3e-3, 900e-3])
    assert made == Row(TOKENS, 1.5, 3000.0, 1000.0, 8.0, 8, 3)


def test_the_benchmark_measures_a_batch_of_eight() -> None:
    assert worker.REQUESTS == 8
