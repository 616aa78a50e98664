"""Rows of the fault matrix: stages that do not start, the first time or again."""

from __future__ import annotations

from antiphon.errors import (
    ModelUnavailableError,
    StageDiedError,
    StageStartError,
)
from antiphon.testing.fault_row import (
    DEGRADED,
    GONE,
    STARTING,
    Fault,
    Target,
)

_STAGES = "tests/faults/test_faults_stages.py"
_HANGS = "tests/faults/test_faults_hangs.py"
_STARTS = "tests/faults/test_faults_starts.py"
_SERVER = "tests/faults/test_faults_server.py"
_WORKERS = "tests/faults/test_faults_workers.py"
_VOICE = "tests/e2e/test_faults.py"
BOUND = "those that still need something from it"

STARTS: tuple[Fault, ...] = (
    Fault(
        id="start-slow",
        target=Target.START,
        what="a stage that takes its time, and less than `start_timeout_s`",
        health=(STARTING,),
        checked=GONE,
        tests=(f"{_STARTS}::test_a_slow_start",),
    ),
    Fault(
        id="start-never",
        target=Target.START,
        what="a stage that is not ready in time, or never",
        fails="the start: it ends, and the error names the stages that are late",
        error=StageStartError,
        within_s=2.0,
        after="start_timeout_s",
        health=(),
        checked=GONE,
        tests=(f"{_STARTS}::test_a_start_that_does_not_end",),
    ),
    Fault(
        id="start-broken",
        target=Target.START,
        what="a broken checkpoint",
        fails="the start, with the stage's own reason",
        error=ModelUnavailableError,
        within_s=2.0,
        health=(),
        checked=GONE,
        tests=(f"{_STARTS}::test_a_broken_checkpoint",),
    ),
    Fault(
        id="start-killed",
        target=Target.START,
        what="SIGKILL of a stage that starts",
        fails="the start",
        error=StageStartError,
        within_s=2.0,
        health=(),
        checked=GONE,
        tests=(f"{_STARTS}::test_a_stage_that_is_killed_while_it_starts",),
    ),
    Fault(
        id="restart-broken",
        target=Target.START,
        what="a checkpoint that is broken when its stage is started again",
        fails="those that need it meanwhile",
        error=StageDiedError,
        within_s=2.0,
        restarted="its process, after a longer pause each time",
        health=(DEGRADED,),
        checked=GONE,
        tests=(f"{_STARTS}::test_a_checkpoint_that_has_become_broken",),
    ),
    Fault(
        id="restart-never",
        target=Target.START,
        what="a stage that is started again and is not ready within `start_timeout_s`",
        fails="those that need it meanwhile",
        error=StageDiedError,
        within_s=2.0,
        restarted="its process, when that time is over",
        health=(DEGRADED,),
        checked=GONE,
        tests=(f"{_STARTS}::test_a_restart_that_does_not_end",),
    ),
)
