"""Deadlines: counting from the last progress, each expiry reported once, memory bounded."""

from __future__ import annotations

import logging
import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from antiphon.core.deadlines import Deadlines, Expired, effective_timeout, parse_timeout
from antiphon.errors import SettingError
from antiphon.testing.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(start=100.0)


def test_expires_exactly_when_due(clock: ManualClock) -> None:
    deadlines = Deadlines(clock)
    deadlines.start("a", 10)
    clock.advance(9.5)
    assert deadlines.expired() == []
    clock.advance(0.5)
    assert deadlines.expired() == [Expired("a", 10.0)]


def test_each_expiry_is_reported_once(clock: ManualClock) -> None:
    deadlines = Deadlines(clock)
    deadlines.start("a", 1)
    clock.advance(5)
    assert [item.key for item in deadlines.expired()] == ["a"]
    assert deadlines.expired() == []
    assert len(deadlines) == 0


def test_progress_counts_anew(clock: ManualClock) -> None:
    """C12: the time is that since the last progress, not the request's age."""
    deadlines = Deadlines(clock)
    deadlines.start("a", 10)
    for _ in range(5):
        clock.advance(9)
        deadlines.touch("a")
    assert deadlines.expired() == []
    assert deadlines.next_due() == clock() + 10
    clock.advance(12)
    assert deadlines.expired() == [Expired("a", 12.0)]


def test_zero_never_expires(clock: ManualClock) -> None:
    deadlines = Deadlines(clock)
    deadlines.start("a", 0)
    clock.advance(1e12)
    assert deadlines.expired() == []
    assert deadlines.next_due() is None
    assert "a" in deadlines


def test_pauses_count_for_nobody(clock: ManualClock) -> None:
    deadlines = Deadlines(clock)
    deadlines.start("a", 10.0)
    clock.advance(4.0)
    deadlines.pause()
    clock.advance(100.0)
    assert deadlines.expired() == []
    assert deadlines.next_due() is None
    deadlines.start("b", 10.0)  # begins to count when time does
    deadlines.resume()
    assert deadlines.next_due() == clock() + 6.0
    clock.advance(6.0)
    assert [e.key for e in deadlines.expired()] == ["a"]
    clock.advance(4.0)
    assert [(e.key, e.waited_s) for e in deadlines.expired()] == [("b", 10.0)]
    deadlines.check_integrity()


def test_pausing_and_resuming_twice_is_harmless(clock: ManualClock) -> None:
    deadlines = Deadlines(clock)
    deadlines.resume()
    deadlines.start("a", 10.0)
    deadlines.pause()
    clock.advance(3.0)
    deadlines.pause()
    clock.advance(3.0)
    deadlines.resume()
    deadlines.resume()
    assert deadlines.next_due() == clock() + 10.0


def test_earliest_deadline_is_due_next(clock: ManualClock) -> None:
    deadlines = Deadlines(clock)
    deadlines.start("late", 50)
    deadlines.start("early", 20)
    assert deadlines.next_due() == 120.0
    deadlines.clear("early")
    assert deadlines.next_due() == 150.0


def test_longest_due_comes_first(clock: ManualClock) -> None:
    deadlines = Deadlines(clock)
    deadlines.start("second", 20)
    deadlines.start("first", 10)
    clock.advance(30)
    assert [item.key for item in deadlines.expired()] == ["first", "second"]


def test_starting_again_replaces_the_timeout(clock: ManualClock) -> None:
    deadlines = Deadlines(clock)
    deadlines.start("a", 5)
    deadlines.start("a", 50)
    clock.advance(10)
    assert deadlines.expired() == []
    assert len(deadlines) == 1


def test_touching_an_unknown_key_is_an_error(clock: ManualClock) -> None:
    with pytest.raises(KeyError):
        Deadlines(clock).touch("a")


def test_clearing_an_unknown_key_is_harmless(clock: ManualClock) -> None:
    deadlines = Deadlines(clock)
    deadlines.clear("a")
    deadlines.check_integrity()


@pytest.mark.parametrize("timeout", [-1.0, math.nan, math.inf])
def test_impossible_timeouts_are_refused(clock: ManualClock, timeout: float) -> None:
    deadlines = Deadlines(clock)
    with pytest.raises(ValueError, match="timeout of a"):
        deadlines.start("a", timeout)
    assert len(deadlines) == 0


def test_memory_follows_the_running_keys(clock: ManualClock) -> None:
    """C24: 10,000 short requests under a long timeout leave no trace."""
    deadlines = Deadlines(clock)
    for number in range(10_000):
        deadlines.start(f"r{number}", 600)
        deadlines.clear(f"r{number}")
    assert len(deadlines._heap) < 100
    deadlines.check_integrity()


class DeadlinesMachine(RuleBasedStateMachine):
    """Against a model that looks at every key each time."""

    keys = st.sampled_from("abcdef")

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(start=7.0)
        self.deadlines = Deadlines(self.clock)
        self.model: dict[str, tuple[float, float]] = {}  # key -> (since, timeout)

    @rule(key=keys, timeout=st.sampled_from([0.0, 1.0, 2.5, 10.0, 600.0]))
    def start(self, key: str, timeout: float) -> None:
        self.deadlines.start(key, timeout)
        self.model[key] = (self.clock(), timeout)

    @rule(key=keys)
    def touch(self, key: str) -> None:
        if key in self.model:
            self.deadlines.touch(key)
            self.model[key] = (self.clock(), self.model[key][1])

    @rule(key=keys)
    def clear(self, key: str) -> None:
        self.deadlines.clear(key)
        self.model.pop(key, None)

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 3.0, 300.0]))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def expire(self) -> None:
        now = self.clock()
        due = {
            key: now - since
            for key, (since, timeout) in self.model.items()
            if timeout and since + timeout <= now
        }
        found = self.deadlines.expired()
        assert {item.key: item.waited_s for item in found} == due
        assert len(found) == len(due)
        for key in due:
            del self.model[key]

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.deadlines.check_integrity()
        assert len(self.deadlines) == len(self.model)
        dues = [since + timeout for since, timeout in self.model.values() if timeout]
        assert self.deadlines.next_due() == (min(dues) if dues else None)


TestDeadlinesMachine = DeadlinesMachine.TestCase
TestDeadlinesMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize(("value", "seconds"), [("600", 600), (" 2.5 ", 2.5), ("0", 0), (3, 3)])
def test_timeouts_are_parsed(value: str | float, seconds: float) -> None:
    assert parse_timeout(value, "X") == seconds


@pytest.mark.parametrize(
    "value", ["-1", -0.5, "nan", math.nan, "inf", "-inf", "1e999", "ten", "", "5s", True]
)
def test_senseless_timeouts_name_their_source(value: str | float) -> None:
    with pytest.raises(SettingError, match=r"^MY_TIMEOUT is .*0 or larger \(0 waits for ever\)"):
        parse_timeout(value, "MY_TIMEOUT")


def test_negative_zero_is_zero() -> None:
    assert math.copysign(1, parse_timeout("-0", "X")) == 1


def test_a_timeout_of_more_than_a_day_is_flagged(caplog: pytest.LogCaptureFixture) -> None:
    """C16: 600,000 was meant as milliseconds."""
    with caplog.at_level(logging.WARNING):
        assert parse_timeout("600000", "X") == 600_000
    assert "more than a day" in caplog.text


def test_an_ordinary_timeout_is_not_flagged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        parse_timeout("600", "X")
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("setting", "request_timeout", "result"),
    [(600, None, 600), (600, 5, 5), (5, 600, 5), (0, 5, 5), (600, 0, 600), (0, 0, 0), (0, None, 0)],
)
def test_the_smaller_timeout_wins_and_zero_is_infinite(
    setting: float, request_timeout: float | None, result: float
) -> None:
    assert effective_timeout(setting, request_timeout) == result


def test_the_manual_clock_never_goes_back() -> None:
    clock = ManualClock()
    with pytest.raises(ValueError, match="cannot go on"):
        clock.advance(-1)
    assert clock() == 0.0
