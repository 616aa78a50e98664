"""The soak over fake stages, which answer at once, and over the voice pipeline."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from antiphon import AsyncOmni
from antiphon.bench.soak import Plan, soak
from antiphon.bench.soak_judge import judge
from antiphon.bench.soak_record import FaultKind, Kind, Outcome, Soak
from antiphon.cli.main import main
from antiphon.orchestrator.clients import OnEvent, OnGone
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.topology import Topology
from antiphon.stage.messages import Ready
from antiphon.stage.spec import StageSpec
from antiphon.testing.fake_stage import FakeStage
from commands import command
from fake_server import ANSWERS, FAKE
from leftovers import stage_processes

READY = Ready(max_model_len=8, num_blocks=1, block_size=8, vllm_version="")
WITHOUT_PROCESSES = (
    FaultKind.RESTART,
    FaultKind.DRAIN,
    FaultKind.SLEEP,
    FaultKind.ABORT,
    FaultKind.LEAVE,
    FaultKind.INTERRUPT,
    FaultKind.BAD,
)
PLAN = Plan(
    duration_s=0.8,
    callers=8,
    seed=2693,  # every kind of fault is on its schedule
    every_s=0.08,
    faults=WITHOUT_PROCESSES,
    deadline_s=1.0,
    silence_s=2.0,
    replicas={"talker": 2},
    say=lambda line: None,
    rest_s=0.3,
)


@dataclass
class Fakes:
    """A pipeline of fake stages; `said` are the lines of the soak."""

    plan: Plan = PLAN
    stages: list[FakeStage] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    said: list[str] = field(default_factory=list)
    found: list[Soak] = field(default_factory=list)
    omnis: list[AsyncOmni] = field(default_factory=list)

    def make(self, topology: Topology, **settings: Any) -> AsyncOmni:
        self.omnis.append(AsyncOmni(topology, make_client=self._client, **settings))
        return self.omnis[-1]

    def _client(self, spec: StageSpec, on_event: OnEvent, on_gone: OnGone) -> FakeStage:
        answer = ANSWERS[spec.name]
        stage = FakeStage(spec.name, on_event, on_gone, keys=self.keys, answer=answer)
        self.stages.append(stage)
        stage.emit(READY)
        return stage

    def last(self, name: str) -> FakeStage:
        """The one of this name that was started last."""
        return next(stage for stage in reversed(self.stages) if stage.name == name)

    async def run(self, later: Callable[[], object] = lambda: None) -> Soak:
        """Soak them; `later` is called when the soak has begun."""
        begun = threading.Event()

        def say(line: str) -> None:
            self.said.append(line)
            if "faults, seed" in line and not begun.is_set():
                begun.set()
                asyncio.get_running_loop().call_later(0.3, later)

        plan = replace(self.plan, say=say)
        await soak(FAKE, Deployment(), plan, self.found, make=self.make)
        return self.found[0]


def against(found: Soak) -> dict[str, tuple[str, ...]]:
    """What is against each check that fails."""
    return {check.name: check.against for check in judge(found) if not check.holds}


async def test_a_sound_pipeline_stands_it() -> None:
    fakes = Fakes()
    found = await fakes.run()
    assert against(found) == {}
    kinds = {call.kind for call in found.calls}
    assert {Kind.TEXT, Kind.CHAT, Kind.SPEECH, Kind.BAD} <= kinds
    assert Kind.SESSION not in kinds  # the entry holds none
    assert sum(call.outcome is Outcome.WHOLE for call in found.calls) > 3
    assert {fault.kind for fault in found.faults if fault.injected} >= {
        FaultKind.RESTART,
        FaultKind.DRAIN,
        FaultKind.SLEEP,
        FaultKind.BAD,
    }
    assert found.windows
    assert len(fakes.said) > 10


async def test_a_stage_that_hangs_without_a_fault_is_found() -> None:
    fakes = Fakes(replace(PLAN, faults=(), duration_s=1.0))

    def hang() -> None:
        fakes.last("code2wav").frozen = True

    ((check, broken),) = against(await fakes.run(hang)).items()
    assert check == "availability outside restart windows is 100 %"
    assert any("deadline_exceeded" in text for text in broken)


async def test_a_stage_that_ends_by_itself_is_found() -> None:
    fakes = Fakes(replace(PLAN, faults=()))
    found = await fakes.run(lambda: fakes.last("thinker").die())
    (broken,) = against(found).values()
    assert all("killed by signal 9" in text for text in broken)
    assert any("serves again" in line for line in found.notices)


async def test_another_answer_is_found() -> None:
    fakes = Fakes(replace(PLAN, faults=()))

    def change() -> None:
        fakes.last("thinker")._answer = replace(ANSWERS["thinker"], token_ids=(1, 3))

    assert list(against(await fakes.run(change))) == ["whole answers are right"]


async def test_a_payload_that_is_left_is_found() -> None:
    fakes = Fakes(replace(PLAN, faults=(), duration_s=0.5))
    broken = against(await fakes.run(lambda: fakes.keys.add("left")))
    assert list(broken) == ["nothing is held when all calls have ended"]


async def test_what_is_no_error_of_ours_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = Fakes(replace(PLAN, faults=(), duration_s=0.6))

    def break_it() -> None:
        monkeypatch.setattr(fakes.omnis[0]._router, "submit", None)

    broken = against(await fakes.run(break_it))
    found = broken["one outcome each; every error names its stage"]
    assert any("a caller ended with TypeError" in text for text in found)


async def test_a_cancellation_ends_it_with_a_report_so_far() -> None:
    fakes = Fakes(replace(PLAN, duration_s=600.0))
    # A name that is bound later.
    running = asyncio.ensure_future(fakes.run(lambda: running.cancel()))  # noqa: PLW0108
    found = await running
    assert found.stopped_early
    assert found.lasted_s < 10
    assert found.remains.held
    assert against(found) == {}


@pytest.mark.parametrize(
    "options",
    [["--faults", "kill,quake"], ["--replicas", "talker"], ["--minutes", "1", "--seconds", "1"]],
)
def test_a_wrong_option_is_the_callers_error(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "soak", *options]) == 2
    assert capsys.readouterr().err.startswith("antiphon: ")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_voice_pipeline_stands_it(tmp_path: Path) -> None:
    """Faults of every kind, and nothing is lost."""
    page, results = tmp_path / "soak.md", tmp_path / "soak.json"
    before = stage_processes()
    options = ["--seconds", "45", "--callers", "4", "--seed", "16"]
    files = ["--report", str(page), "--json", str(results)]
    ended = subprocess.run(
        command(["bench", "soak", *options, *files]),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout == page.read_text()
    assert "**Verdict: all 9 checks hold.**" in ended.stdout
    found = json.loads(results.read_text())["soak"]
    assert sum(call["outcome"] == "whole" for call in found["calls"]) > 5
    assert any(window["kind"] == "kill" for window in found["windows"])
    assert stage_processes() <= before
