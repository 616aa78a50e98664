"""The soak's judgement of calls, windows and remains: each violation that is planted is found."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from antiphon.bench.soak_excuses import beside_a_window, excuse, fault_free
from antiphon.bench.soak_judge import GROWTH_BYTES, away, judge, recoveries
from antiphon.bench.soak_plan import LASTING, schedule
from antiphon.bench.soak_record import (
    Called,
    FaultKind,
    Held,
    Kind,
    Outcome,
    Process,
    Remains,
    Sample,
    Soak,
    Window,
)
from antiphon.bench.soak_report import report
from antiphon.bench.soak_watch import over
from antiphon.orchestrator.replica import ReplicaState

STAGES = ("thinker", "talker", "code2wav")
PROCESS = Process(1 << 28, ("MainThread",), ("socket:", "socket:"))
DIED = "the process of stage 'talker' was killed by signal 9"


def call(**changes: Any) -> Called:
    """A whole answer from 10 s to 12 s, by the first replicas of all stages."""
    given: dict[str, Any] = {
        "label": "soak-1-chat",
        "kind": Kind.CHAT,
        "stages": STAGES,
        "began_s": 10.0,
        "ended_s": 12.0,
        "deadline_s": 20.0,
        "outcome": Outcome.WHOLE,
        "outcomes": 1,
        "replicas": dict.fromkeys(STAGES, 0),
    }
    return Called(**(given | changes))


def failure(**changes: Any) -> Called:
    """One that the talker's end has failed, at 12 s."""
    given = {"outcome": Outcome.FAILED, "code": "stage_died", "message": DIED, "stage": "talker"}
    return call(**(given | changes))


def window(**changes: Any) -> Window:
    """The first talker was killed at 11 s and serves again at 15 s."""
    given: dict[str, Any] = {
        "stage": "talker",
        "number": 0,
        "kind": FaultKind.KILL,
        "began_s": 11.0,
        "ended_s": 15.0,
        "restarts": 0,
        "ends_process": True,
    }
    return Window(**(given | changes))


def soak_of(*calls: Called, windows: tuple[Window, ...] = (), **changes: Any) -> Soak:
    """A soak that has left nothing, of a pipeline with two talkers."""
    at_rest = Held("talker", 0, 0, 0, 0, 0, 0)
    given: dict[str, Any] = {
        "pipeline": "voice",
        "seed": 1,
        "callers": 2,
        "every_s": 4.0,
        "silence_s": 6.0,
        "planned_s": 60.0,
        "lasted_s": 60.0,
        "replicas": {"thinker": 1, "talker": 2, "code2wav": 1},
        "calls": list(calls),
        "windows": list(windows),
        "samples": [Sample(float(s), 1 << 28, 4, 20) for s in range(8)],
        "remains": Remains(held=(at_rest,), before=PROCESS, after=PROCESS),
    }
    return Soak(**(given | changes))


def against(soak: Soak) -> list[str]:
    """All that any check has against it."""
    return [text for check in judge(soak) for text in check.against]


def test_a_clean_soak_passes_every_check() -> None:
    soak = soak_of(call(), failure(), windows=(window(),))
    assert against(soak) == []
    assert "all 9 checks hold" in report(soak)


# --- calls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("late", "says"),
    [
        (call(ended_s=32.1), "it ended 2.10 s after its deadline"),
        (call(ended_s=None, outcome=None, outcomes=0), "no outcome"),
        (call(outcome=Outcome.HUNG, outcomes=0, ended_s=60.0), "it ended 30.00 s after"),
        (call(letting_go_s=10.5), "letting go of it took 10.5 s"),
    ],
)
def test_a_call_that_hangs_is_found(late: Called, says: str) -> None:
    assert any(says in text for text in judge(soak_of(call(), late))[0].against)


def test_a_call_may_end_within_two_seconds_of_its_deadline() -> None:
    assert against(soak_of(call(ended_s=31.9, letting_go_s=9.9))) == []


def test_letting_go_may_take_as_long_as_the_pipeline_sleeps() -> None:
    slow = call(letting_go_s=13.0)
    assert against(soak_of(slow, sleeps=[(11.0, 15.0)])) == []
    assert against(soak_of(slow, sleeps=[(5.0, 11.0)])) != []


@pytest.mark.parametrize(
    ("failed", "windows"),
    [
        (failure(), ()),
        (failure(), (window(number=1),)),  # the other talker
        (failure(), (window(stage="code2wav"),)),
        (failure(), (window(began_s=2.0, ended_s=9.9),)),  # over before the call
        (failure(), (window(began_s=12.1),)),
        (failure(code="internal"), (window(),)),  # no loss of a stage
        (failure(code="connector"), (window(),)),  # its memory was not full
        (failure(stages=("thinker",)), (window(),)),  # it does not need the talker
        (failure(replicas={}), (window(),)),  # it could have had the other one
        (failure(), (window(kind=FaultKind.STOP, ends_process=False, survived=True),)),
        (failure(), (window(kind=FaultKind.FULL, ends_process=False, survived=True),)),
        (failure(code="deadline_exceeded", stage=None), ()),
        (failure(code="deadline_exceeded", stages=("thinker",)), (window(),)),
        (call(outcome=Outcome.HUNG), (window(),)),
    ],
)
def test_a_failure_without_a_reason_is_a_violation(
    failed: Called, windows: tuple[Window, ...]
) -> None:
    soak = soak_of(failed, windows=windows)
    assert excuse(failed, soak) is None
    assert len(judge(soak)[1].against) == 1


@pytest.mark.parametrize(
    ("failed", "windows", "why"),
    [
        (failure(), (window(),), "kill of talker"),
        (failure(), (window(ended_s=None),), "kill of talker"),
        (failure(), (window(kind=FaultKind.STOP, ends_process=False),), "stop of talker"),
        (failure(), (window(kind=FaultKind.DRAIN, survived=True),), "drain of talker"),
        (failure(replicas={}), (window(), window(number=1)), "kill of talker"),
        (
            failure(code="connector"),
            (window(kind=FaultKind.FULL, ends_process=False),),
            "full of talker",
        ),
        (failure(code="deadline_exceeded", stage=None), (window(),), "kill of talker"),
        (failure(code="late", stage=None), (window(),), "kill of talker"),
        (failure(code="deadline_exceeded", kind=Kind.HASTY), (), "its caller gave it little time"),
    ],
)
def test_a_failure_while_something_was_away_has_a_reason(
    failed: Called, windows: tuple[Window, ...], why: str
) -> None:
    soak = soak_of(failed, windows=windows)
    assert excuse(failed, soak) == why
    assert judge(soak)[1].holds


def test_a_deadline_may_pass_while_the_pipeline_sleeps() -> None:
    late = failure(code="deadline_exceeded", stage=None)
    assert excuse(late, soak_of(sleeps=[(11.0, 13.0)])) == "the pipeline slept"
    assert excuse(late, soak_of(sleeps=[(13.0, 14.0)])) is None


def test_a_call_with_the_other_replica_counts_as_fault_free() -> None:
    soak = soak_of(windows=(window(),))
    one, other = call(), call(replicas={"talker": 1})
    assert (fault_free(one, soak), beside_a_window(one, soak)) == (False, False)
    assert (fault_free(other, soak), beside_a_window(other, soak)) == (True, True)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (call(outcomes=2), "2 outcomes"),
        (call(outcomes=0), "0 outcomes"),
        (failure(stage=None), "the error names no stage"),
    ],
)
def test_outcomes_are_one_each_and_name_their_stage(bad: Called, says: str) -> None:
    assert any(says in text for text in judge(soak_of(bad, windows=(window(),)))[2].against)


def test_requests_are_counted_by_the_observer_too() -> None:
    left = Remains(
        ended_twice=("a1",), open_requests=("a2",), broken=["a caller ended with KeyError()"]
    )
    assert judge(soak_of(remains=left))[2].against == (
        "request a1: two outcomes",
        "request a2: no outcome",
        "a caller ended with KeyError()",
    )


def test_a_wrong_answer_is_found() -> None:
    soak = soak_of(call(), call(wrong="the text is 'A' in place of 'B'"))
    assert [check.name for check in judge(soak) if not check.holds] == ["whole answers are right"]


# --- replicas -------------------------------------------------------------------------------------


def test_a_replica_that_stays_away_is_found() -> None:
    soak = soak_of(windows=(window(), window(ended_s=None)))
    assert against(soak) == ["kill of talker at 11.0 s: it has not served again"]


def test_times_to_recovery_are_medians_by_fault() -> None:
    stop = window(kind=FaultKind.STOP, ended_s=12.0)
    found = recoveries(soak_of(windows=(window(), window(ended_s=31.0), window(), stop)))
    assert [(r.kind, r.times, r.median_s, r.longest_s) for r in found] == [
        ("kill", 3, 4.0, 20.0),
        ("stop", 1, 1.0, 1.0),
    ]


def test_time_away_is_counted_once() -> None:
    twice = window(began_s=14.0, ended_s=21.0)
    late = window(number=1, began_s=54.0, ended_s=70.0)
    assert away(soak_of(windows=(twice, window(), window(ended_s=12.0), late))) == {
        "talker": pytest.approx(10 / 60),
        "talker/1": pytest.approx(6 / 60),
    }


def test_bound_calls_are_told_within_two_seconds_of_a_kill() -> None:
    slow = failure(ended_s=13.2)
    assert judge(soak_of(slow, windows=(window(),)))[4].against
    assert judge(soak_of(slow, windows=(window(number=1),)))[4].holds  # it had the other one
    twice = (window(began_s=10.5, ended_s=11.0), window(began_s=12.0))
    assert judge(soak_of(slow, windows=twice))[4].holds  # the later one


@pytest.mark.parametrize(
    ("changes", "state", "restarts", "ended"),
    [
        ({}, "ready", 0, False),  # nobody has noticed yet
        ({}, "restarting", 1, False),
        ({}, "draining", 1, False),
        ({}, "ready", 1, True),
        ({}, "asleep", 1, True),
        ({"ends_process": False, "lifted": False}, "ready", 0, False),  # stopped still
        ({"ends_process": False}, "silent", 0, False),
        ({"ends_process": False}, "ready", 0, True),
        ({"ends_process": False, "lifted": False}, "ready", 1, True),  # ended for its silence
    ],
)
def test_a_window_ends_when_the_replica_serves_again(
    changes: dict[str, Any], state: Any, restarts: int, ended: bool
) -> None:
    assert over(window(**changes), ReplicaState(0, state, None, restarts)) is ended


# --- what is left ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "check"),
    [
        ({"idle_error": "AssertionError: blocks leak"}, 6),
        ({"held": (Held("talker", 0, 0, 3, 0, 0, 0),)}, 6),
        ({"held": (Held("talker", 0, 0, 0, 0, 0, 1),)}, 6),
        ({"running": 1}, 6),
        ({"admitted": {"talker": 1}}, 6),
        ({"files": ("antiphon-1-2",)}, 7),
        ({"processes": (17,)}, 7),
        ({"after": Process(1, ("MainThread", "talker-_read"), ("socket:", "socket:"))}, 8),
        ({"after": Process(1, ("MainThread",), ("socket:",) * 3)}, 8),
    ],
)
def test_what_is_left_is_found(left: dict[str, Any], check: int) -> None:
    soak = soak_of(remains=Remains(**({"before": PROCESS, "after": PROCESS} | left)))
    assert [index for index, found in enumerate(judge(soak)) if not found.holds] == [check]


def test_memory_that_grows_is_found() -> None:
    samples = [Sample(float(s), s * GROWTH_BYTES, 4, 20) for s in range(8)]
    assert "resident memory grew" in judge(soak_of(samples=samples))[8].against[0]


# --- schedule and report --------------------------------------------------------------------------


def test_a_seed_decides_the_schedule() -> None:
    kinds = tuple(FaultKind)
    settings = {"duration_s": 900.0, "every_s": 4.0, "replicas": 4, "silence_s": 6.0}
    one, other = (schedule(7, kinds=kinds, **settings) for _ in range(2))
    assert one == other != schedule(8, kinds=kinds, **settings)
    assert 200 < len(one) < 250
    assert {fault.kind for fault in one} == set(kinds)
    assert {fault.index for fault in one} == {0, 1, 2, 3}
    assert all(a.at_s < b.at_s for a, b in itertools.pairwise(one))
    stops = [fault.seconds for fault in one if fault.kind is FaultKind.STOP]
    assert any(s > 7.0 for s in stops)
    assert not any(4.0 < s < 7.0 for s in stops)
    assert all(fault.seconds > 0 for fault in one if fault.kind in LASTING)


def test_only_what_is_asked_for_is_on_the_schedule() -> None:
    faults = schedule(
        1,
        duration_s=200.0,
        every_s=2.0,
        kinds=(FaultKind.KILL, FaultKind.BAD),
        replicas=1,
        silence_s=6.0,
    )
    assert {fault.kind for fault in faults} == {FaultKind.KILL, FaultKind.BAD}
    nothing = schedule(1, duration_s=9.0, every_s=1.0, kinds=(), replicas=1, silence_s=6.0)
    assert nothing == []


def test_the_report_lists_violations_in_full() -> None:
    broken = failure(message="two\nlines | of it")
    text = report(soak_of(broken))
    assert "1 of 9 checks failed" in text
    assert "soak-1-chat (thinker, talker, code2wav), 10.00 to 12.00 s: failed, stage_died" in text
    assert "two lines | of it" in text
    assert "| stage_died | talker | **no reason** | 1 |" in text
