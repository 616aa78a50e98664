"""The benchmark of the scheduler: what it measures is comparable, what it writes is complete."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.bench import scheduler
from antiphon.bench.frame import command, heading, machine, versions, write
from antiphon.bench.scheduler import Row, main, measure
from antiphon.errors import OutputPathError


@pytest.fixture(scope="module")
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as path:
        Path(path, "config.json").write_text(json.dumps(scheduler._MODEL))
        yield path


@pytest.mark.parametrize("routed", [False, True])
def test_both_schedulers_are_measured_on_the_same_work(folder: str, routed: bool) -> None:
    row = measure(folder, 3, 40, routed=routed)
    assert row.requests == 3
    assert row.pairs == 40
    assert row.stock_us > 0
    assert row.antiphon_us > 0
    assert 0.5 < row.ratio < 3


@pytest.mark.parametrize("requests", [1, 16, 64, 128])
def test_any_batch_can_be_measured(folder: str, requests: int) -> None:
    """C56: microseconds of scheduler and output path for a step of each size."""
    row = measure(folder, requests, 4, routed=True)
    assert row.requests == requests
    assert row.antiphon_us > 0


def test_the_ratio_is_the_median_over_pairs() -> None:
    """One disturbed pair does not move it."""
    row = scheduler._row(8, [1e-6, 2e-6, 4e-6], [1.1e-6, 2.2e-6, 400e-6])
    assert row == Row(8, 1.1, 2.0, 2.2, 3)


def test_main_prints_a_table_and_writes_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scheduler, "PAIRS", {2: 5})
    path = tmp_path / "results.json"
    assert main(path) == 0
    written = json.loads(path.read_text())
    for rows in (written["results"], written["routed"]):
        assert [row["requests"] for row in rows] == [2]
        assert all(
            set(row) == {"requests", "ratio", "stock_us", "antiphon_us", "pairs"} for row in rows
        )
    assert set(written) == {"results", "routed", "machine", "versions", "command"}
    printed = capsys.readouterr().out
    assert "requests" in printed
    assert "routed" in printed


def test_the_benchmark_covers_the_promised_sizes() -> None:
    assert list(scheduler.PAIRS) == [8, 64, 256]


# --- the frame ------------------------------------------------------------------------------------


def test_the_frame_names_machine_and_versions() -> None:
    here = machine()
    assert here.cpu
    assert here.cores >= 1
    assert here.memory_gib > 0
    assert list(versions()) == ["python", "vllm", "torch", "antiphon"]
    assert "not installed" not in versions().values()
    assert here.cpu in heading()


def test_the_command_is_one_line_without_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/some/where/antiphon", "bench", "a b"])
    assert command() == "antiphon bench 'a b'"


def test_an_unwritable_file_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(OutputPathError, match="cannot write"):
        write(tmp_path / "no" / "such" / "folder.json", [])
