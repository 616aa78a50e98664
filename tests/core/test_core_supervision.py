"""Lives of processes and how they are watched."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given

from antiphon.core.supervision import Life, LifePhase, RestartPolicy, Verdict, Watch

P = LifePhase
EVENTS = {
    "ready": lambda life: life.ready(),
    "lost": lambda life: life.lost("why", 0.0),
    "stopped": lambda life: life.stopped(),
    "begins": lambda life: life.begins(),
}
TO_REACH = {
    P.STARTING: (),
    P.READY: ("ready",),
    P.LOST: ("lost",),
    P.STOPPED: ("stopped",),
}
LEGAL = {
    (P.STARTING, "ready"): P.READY,
    (P.STARTING, "lost"): P.LOST,
    (P.STARTING, "stopped"): P.STOPPED,
    (P.READY, "lost"): P.LOST,
    (P.READY, "stopped"): P.STOPPED,
    (P.LOST, "begins"): P.STARTING,
    (P.LOST, "stopped"): P.STOPPED,
    (P.STOPPED, "begins"): P.STARTING,
}


@pytest.mark.parametrize(("phase", "event"), list(itertools.product(TO_REACH, EVENTS)))
def test_every_phase_and_event(phase: LifePhase, event: str) -> None:
    life = Life(RestartPolicy())
    for step in TO_REACH[phase]:
        EVENTS[step](life)
    assert life.phase is phase
    if (to := LEGAL.get((phase, event))) is not None:
        EVENTS[event](life)
        assert life.phase is to
    else:
        with pytest.raises(ValueError, match=f"{phase.name} cannot become"):
            EVENTS[event](life)
        assert life.phase is phase


@pytest.mark.parametrize("event", EVENTS)
def test_who_is_down_may_be_started_by_hand(event: str) -> None:
    life = Life(RestartPolicy(restarts=0))
    assert life.lost("it fell", 0.0) is None
    assert (life.phase, life.why) == (P.DOWN, "it fell")
    if event in ("ready", "lost"):
        with pytest.raises(ValueError, match="DOWN cannot become"):
            EVENTS[event](life)
    else:
        EVENTS[event](life)


def test_pauses_double_up_to_the_longest_and_then_it_stays_down() -> None:
    life = Life(RestartPolicy(restarts=5, window_s=600, backoff_s=1, max_backoff_s=6))
    pauses = []
    for now in range(6):
        pauses.append(life.lost("why", float(now)))
        if pauses[-1] is not None:
            life.begins()
    assert pauses == [1, 2, 4, 6, 6, None]
    assert (life.phase, life.restarts) == (P.DOWN, 5)


def test_ends_that_are_long_past_count_no_more() -> None:
    life = Life(RestartPolicy(restarts=1, window_s=10, backoff_s=1))
    for now in (0.0, 10.0, 20.0, 30.0):
        assert life.lost("why", now) == 1
        life.begins()
        life.ready()
        assert life.why is None
    assert life.lost("why", 31.0) is None


@given(
    st.lists(st.floats(0, 100), max_size=30),
    st.integers(0, 4),
    st.floats(0.1, 50),
    st.floats(0, 5),
    st.floats(0, 5),
)
def test_never_more_restarts_than_allowed_in_any_window(
    gaps: list[float], restarts: int, window_s: float, backoff_s: float, longest_s: float
) -> None:
    life = Life(RestartPolicy(restarts, window_s, backoff_s, longest_s))
    now, ends = 0.0, []
    for gap in gaps:
        now += gap
        pause = life.lost("why", now)
        if pause is None:
            assert sum(end > now - window_s for end in ends) >= restarts
            return
        assert 0 <= pause <= longest_s or pause == min(backoff_s, longest_s)
        ends.append(now)
        assert sum(end > now - window_s for end in ends) <= restarts
        life.begins()


def test_who_answers_is_well() -> None:
    watch = Watch(silence_s=20, step_s=300, tick_s=2)
    for _ in range(100):
        assert watch.tick()
        watch.answered(0.0)
        assert watch.verdict is Verdict.WELL


def test_silence_is_noted_and_then_too_long() -> None:
    watch = Watch(silence_s=20, step_s=300, tick_s=2)
    assert watch.tick()
    seen = []
    for _ in range(10):
        assert not watch.tick()  # one question at a time
        seen.append(watch.verdict)
    assert seen == [Verdict.WELL] * 2 + [Verdict.SILENT] * 7 + [Verdict.DEAD]
    watch.answered(0.0)
    assert (watch.verdict, watch.silent_s) == (Verdict.WELL, 0.0)


def test_a_step_that_goes_on_and_on_is_stuck() -> None:
    """C14: the process answers, and its step does not end."""
    watch = Watch(silence_s=20, step_s=300, tick_s=2)
    for busy_s, verdict in ((299.0, Verdict.WELL), (300.0, Verdict.STUCK), (0.1, Verdict.WELL)):
        watch.tick()
        watch.answered(busy_s)
        assert watch.verdict is verdict


def test_no_limits() -> None:
    watch = Watch(silence_s=0, step_s=0, tick_s=2)
    watch.tick()
    watch.answered(1e9)
    for _ in range(10_000):
        watch.tick()
        assert watch.verdict is Verdict.WELL
