"""Stages that take so many requests and no more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import OverloadedError
from antiphon.orchestrator.admission import Admission
from antiphon.testing.clock import ManualClock

PATHS = st.sampled_from([("a",), ("a", "b"), ("b", "c"), ("a", "b", "c")])


def test_a_full_stage_is_named_and_says_when_to_come_back() -> None:
    clock = ManualClock()
    admission = Admission({"talker": 2}, clock)
    for _ in range(2):
        admission.check(["thinker", "talker"])
        admission.enter(["thinker", "talker"])
    with pytest.raises(OverloadedError, match=r"2 requests .* stage 'talker'") as refused:
        admission.check(["thinker", "talker"])
    assert refused.value.retry_after_s == 1
    admission.check(["thinker"])  # a request that stops there is none of the talker's
    admission.leave(["thinker", "talker"])
    admission.check(["thinker", "talker"])


def test_the_slower_the_stage_the_later_to_come_back() -> None:
    clock = ManualClock()
    admission = Admission({"talker": 1}, clock)
    for _ in range(30):
        admission.enter(["talker"])
        clock.advance(20)
        admission.leave(["talker"])
    admission.enter(["talker"])
    with pytest.raises(OverloadedError) as refused:
        admission.check(["talker"])
    assert 15 < refused.value.retry_after_s <= 20


@given(st.lists(st.tuples(st.booleans(), PATHS), max_size=60))
def test_counts_are_those_of_the_requests_that_are_alive(
    steps: list[tuple[bool, tuple[str, ...]]],
) -> None:
    limits = {"a": 3, "b": 2}
    admission = Admission(limits, ManualClock())
    alive: list[tuple[str, ...]] = []
    for enters, path in steps:
        if enters:
            full = any(
                stage in limits and sum(stage in p for p in alive) >= limits[stage]
                for stage in path
            )
            if full:
                with pytest.raises(OverloadedError):
                    admission.check(path)
            else:
                admission.check(path)
                admission.enter(path)
                alive.append(path)
        elif alive:
            admission.leave(alive.pop())
        for stage in "abc":
            assert admission.live(stage) == sum(stage in p for p in alive)
