"""An edge's budget: who must wait, who may go on, and that nobody waits for ever."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from antiphon.core import budget as budget_module
from antiphon.core.budget import BudgetStatistics, EdgeBudget, EdgeLimits
from antiphon.testing.clock import ManualClock

SMALL = EdgeLimits(request_chunks=3, request_bytes=100, total_chunks=6, total_bytes=200)


@pytest.fixture
def budget() -> EdgeBudget:
    return EdgeBudget(SMALL, ManualClock())


def send(budget: EdgeBudget, uid: str, count: int, nbytes: int = 1) -> list[str]:
    """`count` chunks of a request that has none; their keys."""
    keys = [f"{uid}/{number}" for number in range(count)]
    for key in keys:
        budget.sent(uid, key, nbytes)
    return keys


# --- the request's own limits ---------------------------------------------------------------------


def test_chunks_block_when_they_reach_the_limit(budget: EdgeBudget) -> None:
    send(budget, "a", 2)
    assert not budget.blocked("a")
    budget.sent("a", "a/2", 1)
    assert budget.blocked("a")


def test_bytes_block_when_they_reach_the_limit(budget: EdgeBudget) -> None:
    budget.sent("a", "a/0", 99)
    assert not budget.blocked("a")
    budget.sent("a", "a/1", 1)
    assert budget.blocked("a")


def test_a_chunk_larger_than_every_limit_passes_and_blocks_until_returned(
    budget: EdgeBudget,
) -> None:
    assert not budget.blocked("a")
    budget.sent("a", "a/0", 10_000)
    assert budget.blocked("a")
    budget.returned(["a/0"])
    assert budget.take_released() == ["a"]
    assert not budget.blocked("a")


def test_a_chunk_without_bytes_counts_as_a_chunk(budget: EdgeBudget) -> None:
    send(budget, "a", 3, nbytes=0)
    assert budget.blocked("a")


def test_one_requests_limit_stops_no_other(budget: EdgeBudget) -> None:
    """C107: no request waits for another's chunks below the totals."""
    send(budget, "a", 3)
    send(budget, "b", 1)
    assert budget.blocked("a")
    assert not budget.blocked("b")


# --- the edge's totals ----------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "nbytes"), [(2, 1), (1, 70)], ids=["chunks", "bytes"])
def test_totals_block_who_has_something_outstanding(
    budget: EdgeBudget, count: int, nbytes: int
) -> None:
    for uid in "abc":
        assert not budget.blocked(uid)
        send(budget, uid, count, nbytes)
    assert [budget.blocked(uid) for uid in "abc"] == [True, True, True]


def test_a_request_with_nothing_outstanding_is_never_blocked(budget: EdgeBudget) -> None:
    for uid in "abcdefgh":
        assert not budget.blocked(uid)
        send(budget, uid, 2)
    assert budget.statistics().chunks == 16


def test_free_totals_release_in_the_order_of_waiting(budget: EdgeBudget) -> None:
    keys = [key for uid in "abc" for key in send(budget, uid, 2)]
    for uid in "cab":
        assert budget.blocked(uid)
    assert budget.take_released() == []
    budget.returned(keys[:1])
    assert budget.take_released() == ["c", "a", "b"]
    assert budget.take_released() == []


def test_a_request_at_its_own_limit_is_not_released_by_the_totals(budget: EdgeBudget) -> None:
    own = send(budget, "a", 3)
    other = send(budget, "b", 3)
    assert budget.blocked("a")
    budget.returned(other)
    assert budget.take_released() == []
    budget.returned(own[:1])
    assert budget.take_released() == ["a"]


def test_totals_that_fill_again_release_nobody(budget: EdgeBudget) -> None:
    keys = [key for uid in "abc" for key in send(budget, uid, 2)]
    assert budget.blocked("b")
    budget.returned(keys[:1])
    budget.sent("d", "d/0", 1)  # before anybody has asked
    assert budget.take_released() == []
    assert budget.blocked("b")
    assert budget.statistics().blocked == 1


def test_who_has_nothing_outstanding_any_more_is_released_though_the_totals_are_reached(
    budget: EdgeBudget,
) -> None:
    keys = send(budget, "a", 2)
    send(budget, "b", 2)
    send(budget, "c", 2)
    assert budget.blocked("b")
    assert budget.blocked("a")
    budget.returned(keys)
    send(budget, "d", 2)
    assert budget.take_released() == ["a"]


# --- waiting --------------------------------------------------------------------------------------


def test_asking_again_keeps_the_place_and_counts_once(budget: EdgeBudget) -> None:
    keys = [key for uid in "abc" for key in send(budget, uid, 2)]
    for uid in "abaa":
        assert budget.blocked(uid)
    assert budget.statistics().blockings == 2
    budget.returned(keys[4:])
    assert budget.take_released() == ["a", "b"]


def test_who_was_told_to_go_on_is_not_released_again(budget: EdgeBudget) -> None:
    keys = send(budget, "a", 3)
    assert budget.blocked("a")
    budget.returned(keys[:1])
    assert not budget.blocked("a")
    assert budget.take_released() == []
    assert budget.statistics().blocked == 0


def test_who_waits_anew_goes_to_the_end(budget: EdgeBudget) -> None:
    keys = {uid: send(budget, uid, 3) for uid in "ab"}
    assert budget.blocked("a")
    budget.returned(keys["a"][:1])
    assert budget.take_released() == ["a"]
    assert budget.blocked("b")
    budget.sent("a", "a/3", 1)
    assert budget.blocked("a")
    budget.returned(keys["a"] + keys["b"])
    assert budget.take_released() == ["b", "a"]


def test_a_chunk_of_a_step_in_flight_takes_the_release_back(budget: EdgeBudget) -> None:
    keys = send(budget, "a", 3)
    assert budget.blocked("a")
    budget.returned(keys[:1])
    budget.sent("a", "a/3", 1)
    assert budget.take_released() == []
    budget.returned(keys[1:])
    assert budget.take_released() == ["a"]


# --- ends -----------------------------------------------------------------------------------------


def test_a_closed_request_waits_no_more_but_its_chunks_count(budget: EdgeBudget) -> None:
    keys = send(budget, "a", 3)
    assert budget.blocked("a")
    budget.close("a")
    assert budget.statistics().blocked == 0
    assert budget.statistics().chunks == 3
    budget.returned(keys)
    assert budget.take_released() == []
    assert len(budget) == 0


def test_the_chunks_of_a_closed_request_keep_others_waiting(budget: EdgeBudget) -> None:
    keys = send(budget, "a", 5)
    budget.close("a")
    send(budget, "b", 1)
    assert budget.blocked("b")
    budget.returned(keys[:1])
    assert budget.take_released() == ["b"]


def test_closing_a_request_that_was_released_by_its_last_chunk_forgets_it(
    budget: EdgeBudget,
) -> None:
    budget.sent("a", "a/0", 100)
    assert budget.blocked("a")
    budget.returned(["a/0"])
    budget.close("a")
    assert len(budget) == 0
    assert budget.take_released() == []


def test_a_chunk_that_is_reported_after_the_end_counts_until_returned(budget: EdgeBudget) -> None:
    """The worker stores a request's last chunk after the scheduler has finished it."""
    budget.close("a")
    budget.sent("a", "a/0", 7)
    assert budget.statistics().bytes == 7
    budget.returned(["a/0"])
    assert len(budget) == 0


def test_a_dropped_request_gives_back_all_it_had(budget: EdgeBudget) -> None:
    send(budget, "a", 5, nbytes=10)
    send(budget, "b", 1)
    assert budget.blocked("a")
    assert budget.blocked("b")
    budget.drop("a")
    assert budget.take_released() == ["b"]
    statistics = budget.statistics()
    assert (statistics.chunks, statistics.bytes, statistics.dropped) == (1, 1, 5)


def test_what_is_returned_after_a_drop_is_ignored(budget: EdgeBudget) -> None:
    keys = send(budget, "a", 2)
    budget.drop("a")
    budget.returned(keys)
    assert budget.statistics().returned == 0
    assert len(budget) == 0


def test_unknown_names_are_ignored(budget: EdgeBudget) -> None:
    budget.returned(["x", "y"])
    budget.drop("x")
    budget.close("x")
    assert not budget.blocked("x")
    assert len(budget) == 0


def test_a_repeated_return_counts_once(budget: EdgeBudget) -> None:
    keys = send(budget, "a", 2)
    budget.returned([keys[0], keys[0]])
    budget.returned([keys[0]])
    assert budget.statistics().chunks == 1


def test_a_key_that_is_sent_twice_is_a_defect(budget: EdgeBudget) -> None:
    budget.sent("a", "k", 1)
    for uid in "ab":
        with pytest.raises(AssertionError, match="k has been sent twice"):
            budget.sent(uid, "k", 1)
    budget.check_integrity()
    assert len(budget) == 1


# --- figures --------------------------------------------------------------------------------------


def test_statistics(budget: EdgeBudget) -> None:
    keys = send(budget, "a", 3, nbytes=10)
    send(budget, "b", 2, nbytes=1)
    assert budget.blocked("a")
    budget.returned(keys[:2])
    budget.drop("b")
    assert budget.statistics() == BudgetStatistics(
        chunks=1,
        bytes=10,
        peak_chunks=5,
        peak_bytes=32,
        sent=5,
        returned=2,
        dropped=2,
        blocked=1,
        blockings=1,
        blocked_s=0.0,
        capacity_chunks=6,
        capacity_bytes=200,
    )


def test_waits_are_timed_while_they_last_and_when_they_are_over() -> None:
    clock = ManualClock(1000.0)
    budget = EdgeBudget(SMALL, clock)
    keys = send(budget, "a", 3)
    send(budget, "b", 3)
    clock.advance(5.0)  # nobody has asked yet
    assert budget.blocked("a")
    clock.advance(1.0)
    assert budget.blocked("a")  # it waits already
    assert budget.blocked("b")
    clock.advance(2.0)
    assert budget.statistics().blocked_s == pytest.approx(3.0 + 2.0)
    budget.returned(keys)
    assert budget.take_released() == ["a"]
    clock.advance(4.0)
    assert budget.statistics().blocked_s == pytest.approx(3.0 + 6.0)
    budget.drop("b")
    clock.advance(8.0)
    assert budget.statistics().blocked_s == pytest.approx(9.0)


@pytest.mark.parametrize("name", EdgeLimits.__struct_fields__)
@pytest.mark.parametrize("limit", [0, -1])
def test_limits_must_be_positive(name: str, limit: int) -> None:
    with pytest.raises(ValueError, match=f"{name} is {limit}"):
        EdgeLimits(**{name: limit})


def lines_run(call: Callable[[], object]) -> int:
    """How many lines of the module a call runs."""
    count = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename != budget_module.__file__:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("own", [True, False], ids=["at their own limits", "behind the totals"])
def test_the_cost_of_a_call_does_not_grow_with_who_waits(own: bool) -> None:
    """C56: the host's work per step follows what changed."""

    def cost(waiting: int) -> int:
        totals = 4 * waiting if own else waiting
        budget = EdgeBudget(EdgeLimits(request_chunks=2, total_chunks=totals), ManualClock())
        for number in range(waiting):
            send(budget, f"w{number}", 2 if own else 1)
        for number in range(waiting):
            assert budget.blocked(f"w{number}")

        def step() -> None:
            budget.sent("x", "x/0", 1)
            assert not budget.blocked("y")
            budget.returned(["x/0"])
            budget.statistics()
            assert budget.take_released() == []

        return lines_run(step)

    assert cost(10) == cost(1000) > 20


# --- nobody waits for ever ------------------------------------------------------------------------


def deliver_one_stream_at_a_time(
    blocked: Callable[[EdgeBudget, str], bool], chunks: int
) -> dict[str, int]:
    """Three producers of so many chunks and a consumer that serves the last one first.

    The totals hold one chunk. Gives how many chunks of each were used when nothing moves any more.
    """
    budget = EdgeBudget(EdgeLimits(request_chunks=4, total_chunks=1), ManualClock())
    left = dict.fromkeys("abc", chunks)
    used = dict.fromkeys("abc", 0)
    sent: dict[str, deque[str]] = {uid: deque() for uid in "abc"}
    moved = True
    while moved:
        moved = False
        for uid in "abc":
            if left[uid] and not blocked(budget, uid):
                left[uid] -= 1
                sent[uid].append(f"{uid}/{left[uid]}")
                budget.sent(uid, sent[uid][-1], 1)
                moved = True
        served = next((uid for uid in "cba" if used[uid] < chunks), None)
        if served is not None and sent[served]:
            budget.returned([sent[served].popleft()])
            used[served] += 1
            moved = True
    return used


def test_a_consumer_that_serves_some_streams_at_a_time_gets_all() -> None:
    """C77: a bounded window of active streams, and totals full of the others' chunks."""
    assert deliver_one_stream_at_a_time(EdgeBudget.blocked, 5) == {"a": 5, "b": 5, "c": 5}


def test_totals_that_stop_everybody_would_be_a_deadlock() -> None:
    """Negative control of the test above: without the exception the consumer gets nothing."""

    def strict(budget: EdgeBudget, uid: str) -> bool:
        return budget.statistics().chunks >= 1

    assert deliver_one_stream_at_a_time(strict, 5) == {"a": 0, "b": 0, "c": 0}


@settings(deadline=None)
@given(data=st.data())
def test_if_every_chunk_is_returned_in_whatever_order_nobody_stays_blocked(
    data: st.DataObject,
) -> None:
    budget = EdgeBudget(SMALL, ManualClock())
    left = {f"r{n}": count for n, count in enumerate(data.draw(st.lists(st.integers(1, 8))))}
    running = deque(left)
    parked: set[str] = set()
    keys: list[str] = []
    while any(left.values()) or keys:
        while running:  # as far as it goes, then the consumer must move something
            uid = running.popleft()
            if budget.blocked(uid):
                parked.add(uid)
            elif left[uid]:
                keys.append(f"{uid}/{left[uid]}")
                budget.sent(uid, keys[-1], data.draw(st.integers(0, 150)))
                left[uid] -= 1
                running.append(uid)
            else:
                budget.close(uid)
        assert keys, f"{parked} wait, and nothing is left to be returned"
        budget.returned([keys.pop(data.draw(st.integers(0, len(keys) - 1)))])
        released = budget.take_released()
        assert parked.issuperset(released)
        parked.difference_update(released)
        running.extend(released)
    for uid in running:
        budget.close(uid)
    assert not parked
    assert len(budget) == 0
    budget.check_integrity()


# --- against a model ------------------------------------------------------------------------------


class Model:
    """The rule as it is written down, by counting everything anew each time."""

    def __init__(self) -> None:
        self.chunks: dict[str, tuple[str, int]] = {}  # key -> uid, bytes
        self.waiting: list[str] = []

    def must_wait(self, uid: str) -> bool:
        own = [nbytes for owner, nbytes in self.chunks.values() if owner == uid]
        total = [nbytes for _, nbytes in self.chunks.values()]
        if not own:
            return False
        return (
            len(own) >= SMALL.request_chunks
            or sum(own) >= SMALL.request_bytes
            or len(total) >= SMALL.total_chunks
            or sum(total) >= SMALL.total_bytes
        )

    def known(self) -> set[str]:
        return {uid for uid, _ in self.chunks.values()} | set(self.waiting)


UIDS = st.sampled_from([f"r{number}" for number in range(5)])


class BudgetMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.budget = EdgeBudget(SMALL, ManualClock())
        self.model = Model()
        self.serial = 0

    @rule(uid=UIDS, nbytes=st.sampled_from([0, 1, 30, 50, 120, 300]))
    def send(self, uid: str, nbytes: int) -> None:
        self.serial += 1
        self.budget.sent(uid, f"k{self.serial}", nbytes)
        self.model.chunks[f"k{self.serial}"] = (uid, nbytes)

    @precondition(lambda self: self.model.chunks)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        known = st.sampled_from(sorted(self.model.chunks))
        keys = data.draw(st.lists(known | st.just("unknown"), min_size=1, max_size=4))
        self.budget.returned(keys)
        for key in keys:
            self.model.chunks.pop(key, None)

    @rule(uid=UIDS)
    def ask(self, uid: str) -> None:
        wait = self.model.must_wait(uid)
        assert self.budget.blocked(uid) == wait
        if wait and uid not in self.model.waiting:
            self.model.waiting.append(uid)
        elif not wait and uid in self.model.waiting:
            self.model.waiting.remove(uid)

    @rule()
    def release(self) -> None:
        released = [uid for uid in self.model.waiting if not self.model.must_wait(uid)]
        assert self.budget.take_released() == released
        self.model.waiting = [uid for uid in self.model.waiting if uid not in released]

    @rule(uid=UIDS)
    def close(self, uid: str) -> None:
        self.budget.close(uid)
        self.model.waiting = [other for other in self.model.waiting if other != uid]

    @rule(uid=UIDS)
    def drop(self, uid: str) -> None:
        self.budget.drop(uid)
        self.close(uid)
        chunks = self.model.chunks.items()
        self.model.chunks = {key: chunk for key, chunk in chunks if chunk[0] != uid}

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.budget.check_integrity()
        statistics = self.budget.statistics()
        assert len(self.budget) == len(self.model.known())
        assert statistics.blocked == len(self.model.waiting)
        assert statistics.chunks == len(self.model.chunks) <= statistics.peak_chunks
        assert statistics.bytes == sum(nbytes for _, nbytes in self.model.chunks.values())
        assert statistics.sent == self.serial
        assert statistics.sent == statistics.chunks + statistics.returned + statistics.dropped

    def teardown(self) -> None:
        """Once every chunk is returned all go on and nothing is kept (AR-INV-006)."""
        self.budget.returned(list(self.model.chunks))
        assert self.budget.take_released() == self.model.waiting
        assert len(self.budget) == 0
        self.budget.check_integrity()


TestBudgetMachine = BudgetMachine.TestCase
TestBudgetMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
