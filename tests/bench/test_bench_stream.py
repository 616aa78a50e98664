"""The benchmark of streaming, over pipelines that answer at once and say how long they took."""

from __future__ import annotations

import asyncio
import io
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from antiphon.bench.frame import write
from antiphon.bench.stream import QUESTION, Row, measure, table
from antiphon.cli.bench_stream import full_edges
from antiphon.cli.main import main
from antiphon.core.continuity import Continuity
from antiphon.errors import StageError
from antiphon.orchestrator.api import OmniRequest, Reply, Timings
from antiphon.pipeline.defaults import fill_defaults
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.topology import EdgeMode
from sample_pipeline import TOPOLOGY

AUDIO = np.linspace(-0.5, 0.5, 2400, dtype=np.float32)


@dataclass(frozen=True)
class Heard:
    """What one caller is to get."""

    ttfa_s: float = 1.0
    total_s: float = 4.0
    worst_s: float = 0.0
    text: str = "Three sentences."
    audio: np.ndarray | None = field(default_factory=lambda: AUDIO)

    def reply(self) -> Reply:
        continuity = Continuity(3, 2.0, self.worst_s, self.worst_s, int(self.worst_s > 0.1))
        timings = Timings(self.total_s, 0.1, self.ttfa_s, 2.0, continuity)
        if self.audio is None:
            timings = Timings(self.total_s, 0.1)
        return Reply(self.text, self.audio, 24_000, "stop", timings)


@dataclass
class Fake:
    """Stands in for `AsyncOmni`: gives these, in order, then the last one again and again."""

    name: str
    heard: Sequence[Heard]
    log: list[str] = field(default_factory=list)
    requests: list[OmniRequest] = field(default_factory=list)
    running: int = 0

    def __post_init__(self) -> None:
        self._next = deque(self.heard)

    async def generate(self, request: OmniRequest) -> Reply:
        self.requests.append(request)
        self.running += 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.log.append(f"{self.name} {self.running}")
        await asyncio.sleep(0)
        self.running -= 1
        heard = self._next.popleft() if len(self._next) > 1 else self._next[0]
        return heard.reply()


async def rows_of(
    stream: Sequence[Heard],
    full: Sequence[Heard],
    concurrency: Sequence[int] = (1,),
    rounds: int = 1,
) -> list[Row]:
    """The first of each is the warm-up's."""
    return await measure(Fake("stream", stream), Fake("full", full), concurrency, rounds)


async def test_rounds_are_interleaved_and_callers_ask_at_once() -> None:
    log: list[str] = []
    said: list[str] = []
    stream, full = Fake("stream", [Heard()], log), Fake("full", [Heard()], log)
    await measure(stream, full, (1, 2), 2, said.append)
    warm_up = ["stream 1", "full 1"]
    alone = ["stream 1", "full 1", "full 1", "stream 1"]
    assert log[:6] == warm_up + alone
    assert log[6:] == ["stream 2"] * 2 + ["full 2"] * 4 + ["stream 2"] * 2
    assert {request.text for request in stream.requests + full.requests} == {QUESTION}
    assert said[0] == "warm-up"
    assert said[-1] == "2 at once, round 2 of 2, stream edges"


async def test_ratios_are_medians_over_pairs_of_rounds() -> None:
    """One disturbed pair does not move them, and the warm-up is no part of it."""
    stream = [Heard(90, 90), Heard(1, 6), Heard(2, 4), Heard(30, 50)]
    full = [Heard(90, 90), Heard(4, 4), Heard(5, 5), Heard(60, 5)]
    (row,) = await rows_of(stream, full, rounds=3)
    # TTFA 1/4, 2/5, 30/60; total 6/4, 4/5, 50/5: the pairs of each round, in either order.
    assert (row.ttfa_ratio, row.total_ratio) == (0.4, 1.5)
    assert (row.ttfa_stream_s, row.ttfa_full_s) == (2, 5)
    assert (row.total_stream_s, row.total_full_s) == (6, 5)
    assert row.rounds == 3


async def test_playback_is_the_stream_callers() -> None:
    """Worst gap, share of those without one, and the median of the real-time factors."""
    stream = [Heard(), Heard(total_s=1), Heard(worst_s=0.35), Heard(worst_s=0.1), Heard(total_s=9)]
    (row,) = await rows_of(stream, [Heard(worst_s=7.0)], concurrency=(4,))
    assert row.underrun_seconds == 0.35
    assert row.continuous_rate == 0.75
    assert row.rtf == 2.0


async def test_more_callers_are_held_against_one() -> None:
    stream = [Heard(), Heard(1.0), Heard(3.0), Heard(3.0)]
    rows = await rows_of(stream, [Heard()], concurrency=(1, 2))
    assert [row.ttfa_vs_one for row in rows] == [1, 3]


async def test_without_a_single_caller_nothing_is_held_against_one() -> None:
    rows = await rows_of([Heard()], [Heard()], concurrency=(2,))
    assert [row.ttfa_vs_one for row in rows] == [None]
    assert " - " in next(line for line in printed(rows).splitlines() if line.strip()[:2] == "2 ")


DIFFERENT = {
    "text": (Heard(text="Other words."), None),
    "length": (Heard(audio=AUDIO[1:]), None),
    "sound": (Heard(audio=AUDIO + np.float32(0.01)), 0.01),
    "no number": (Heard(audio=np.full_like(AUDIO, np.nan)), None),
}


@pytest.mark.parametrize("case", DIFFERENT)
@pytest.mark.parametrize("mode", ["stream", "full"])
async def test_different_outputs_are_not_compared(case: str, mode: str) -> None:
    """One odd reply among many, of either mode, is enough."""
    odd, size = DIFFERENT[case]
    some = {"stream": [Heard()], "full": [Heard()]}
    some[mode] = [Heard(), Heard(), odd, Heard()]
    one, two = await rows_of(some["stream"], some["full"], concurrency=(1, 2))
    assert (one.same_output, two.same_output) == (True, False)
    assert two.audio_difference == pytest.approx(size, abs=1e-5)
    assert "OUTPUTS DIFFER with 2 callers" in printed([one, two])


async def test_rounding_errors_are_no_difference() -> None:
    close = Heard(audio=AUDIO + np.float32(5e-4))
    (row,) = await rows_of([Heard(), close], [Heard()])
    assert row.same_output
    assert row.audio_difference == pytest.approx(5e-4, abs=1e-6)
    assert "every text equal, audio equal within 0.001, in both modes" in printed([row])


async def test_an_answer_without_sound_measures_nothing() -> None:
    with pytest.raises(StageError, match="without sound"):
        await rows_of([Heard(), Heard(audio=None)], [Heard()])


async def test_the_results_hold_what_was_promised(tmp_path: Path) -> None:
    write(tmp_path / "r.json", await rows_of([Heard()], [Heard()], concurrency=(1, 4)))
    written = json.loads((tmp_path / "r.json").read_text())
    assert set(written) == {"results", "machine", "versions", "command"}
    promised = {
        "concurrency",
        "ttfa_stream_s",
        "ttfa_full_s",
        "ttfa_ratio",
        "total_stream_s",
        "total_full_s",
        "total_ratio",
        "ttfa_vs_one",
        "underrun_seconds",
        "continuous_rate",
        "rtf",
        "same_output",
    }
    assert [row["concurrency"] for row in written["results"]] == [1, 4]
    assert all(promised <= row.keys() for row in written["results"])


async def test_the_table_fits_an_ordinary_terminal() -> None:
    """Minutes where seconds are usual, and still nothing is cut."""
    slow = Heard(ttfa_s=123.45, total_s=2345.6, worst_s=0.25)
    fast = Heard(ttfa_s=0.5, total_s=23.45)
    text = printed(await rows_of([slow], [fast], concurrency=(1, 16)))
    for number in ("123", "2346", "0.50", "23.4", "247", "1.00", "0.25", "0%", "1173"):
        assert f" {number} " in text
    assert "…" not in text


def test_full_edges_change_nothing_but_the_modes() -> None:
    given = fill_defaults(TOPOLOGY, Deployment(pipeline="sample"))
    made = full_edges(given)
    assert {edge.mode for edge in made.edges.values()} == {EdgeMode.FULL}
    assert made.edges["codes"].options == given.edges["codes"].options
    assert made.stages == given.stages


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_voice_pipeline_gives_the_same_both_ways(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """C76: the playback of every caller is measured, one caller and several."""
    path = tmp_path / "r.json"
    line = ["bench", "stream", "--concurrency", "1,2", "--rounds", "1", "--json", str(path)]
    assert main(line) == 0
    rows = json.loads(path.read_text())["results"]
    assert [row["concurrency"] for row in rows] == [1, 2]
    assert all(row["same_output"] for row in rows)
    assert all(row["ttfa_ratio"] < 1 for row in rows)
    assert "outputs: every text equal" in capsys.readouterr().out


def printed(rows: Sequence[Row]) -> str:
    out = io.StringIO()
    Console(file=out, width=80).print(table(rows))
    return out.getvalue()
