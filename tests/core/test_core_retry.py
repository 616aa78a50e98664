"""Trying again: how often, and after how long."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.retry import RetryPolicy


def delays(policy: RetryPolicy) -> list[float]:
    """All waits of a call that fails every time."""
    found: list[float] = []
    while (delay := policy.next_delay(len(found) + 1)) is not None:
        found.append(delay)
    return found


def test_waits_grow_until_it_gives_up() -> None:
    assert delays(RetryPolicy()) == pytest.approx([0.05, 0.1, 0.2, 0.4])


def test_one_attempt_is_never_repeated() -> None:
    assert RetryPolicy(attempts=1).next_delay(1) is None


def test_it_stays_given_up() -> None:
    assert RetryPolicy(attempts=3).next_delay(50) is None


def test_it_can_be_tried_again_at_once() -> None:
    assert delays(RetryPolicy(first_s=0.0, attempts=3)) == [0.0, 0.0]


@given(
    first_s=st.floats(0, 60),
    factor=st.floats(1, 10),
    attempts=st.integers(1, 100),
)
def test_every_policy_ends(first_s: float, factor: float, attempts: int) -> None:
    waits = delays(RetryPolicy(first_s, factor, attempts))
    assert len(waits) == attempts - 1
    assert waits == sorted(waits)
    assert all(math.isfinite(wait) for wait in waits)


@pytest.mark.parametrize("attempt", [0, -1])
def test_attempts_count_from_one(attempt: int) -> None:
    with pytest.raises(ValueError, match="count from 1"):
        RetryPolicy().next_delay(attempt)


@pytest.mark.parametrize("first_s", [-0.1, math.nan, math.inf])
def test_a_first_wait_that_makes_no_sense_is_refused(first_s: float) -> None:
    with pytest.raises(ValueError, match="first_s is"):
        RetryPolicy(first_s=first_s)


@pytest.mark.parametrize("factor", [0.5, 10.5, math.nan, math.inf])
def test_a_factor_that_makes_no_sense_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match="factor is"):
        RetryPolicy(factor=factor)


@pytest.mark.parametrize("attempts", [0, -3, 101])
def test_a_number_of_attempts_that_makes_no_sense_is_refused(attempts: int) -> None:
    with pytest.raises(ValueError, match="attempts is"):
        RetryPolicy(attempts=attempts)
