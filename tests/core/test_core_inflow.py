"""What has arrived for a request: rows that are lacking, and each key used up exactly once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.inflow import Inflow
from antiphon.core.prompt_plan import PromptPlan

PLAN = PromptPlan((1, 2, 3))


@pytest.fixture
def inflow() -> Inflow:
    return Inflow("codes", stream=True)


def absorb(inflow: Inflow, key: str, *, last: bool = False) -> list[str]:
    """A chunk that gave neither prompt nor rows."""
    inflow.accepted([key])
    return inflow.answered(key, 0, last=last, kept=False)


def give_rows(inflow: Inflow, key: str, rows: int, *, last: bool = False) -> list[str]:
    inflow.accepted([key])
    return inflow.answered(key, rows, last=last, kept=False)


def give_prompt(inflow: Inflow, key: str, rows: int = 0, *, last: bool = False) -> list[str]:
    """An ar request's prompt, as the scheduler notes it."""
    inflow.accepted([key])
    used = inflow.answered(key, rows, last=last, kept=True)
    inflow.planned, inflow.running = True, key
    return used


def give_plan(
    inflow: Inflow, key: str | None, plan: PromptPlan = PLAN, *, last: bool = False
) -> list[str]:
    """A generation request's chunk, as the scheduler notes it."""
    if key is not None:
        inflow.accepted([key])
    used = inflow.answered(key, 0, last=last, kept=True)
    inflow.plans.append((plan, key))
    return used


# --- ar: the prompt -------------------------------------------------------------------------------


def test_a_prompts_chunk_is_used_up_when_it_is_scheduled(inflow: Inflow) -> None:
    assert give_prompt(inflow, "k") == []
    assert inflow.scheduled() == ["k"]


def test_a_prompt_that_is_scheduled_again_is_used_up_once(inflow: Inflow) -> None:
    """A preempted request's rows are still in the worker."""
    give_prompt(inflow, "k")
    inflow.scheduled()
    assert inflow.scheduled() == []


def test_a_prompt_may_take_several_chunks(inflow: Inflow) -> None:
    """The adapter keeps what it needs of the first ones."""
    assert absorb(inflow, "a") == ["a"]
    assert absorb(inflow, "b") == ["b"]
    assert give_prompt(inflow, "c") == []
    assert inflow.scheduled() == ["c"]
    assert inflow.close() == []


def test_a_chunk_with_prompt_and_rows_is_used_up_with_its_last_row(inflow: Inflow) -> None:
    give_prompt(inflow, "k", rows=2)
    assert inflow.scheduled() == []
    assert inflow.needs(2) == []
    assert inflow.needs(3) == ["k"]
    assert inflow.close() == []


def test_a_prompt_frees_no_chunk_of_rows(inflow: Inflow) -> None:
    give_prompt(inflow, "prompt")
    give_rows(inflow, "rows", 2)
    assert inflow.scheduled() == ["prompt"]


# --- ar: rows -------------------------------------------------------------------------------------


def test_a_step_starves_if_it_needs_a_row_that_is_not_there(inflow: Inflow) -> None:
    give_prompt(inflow, "p")
    inflow.needs(1)
    assert inflow.starves
    give_rows(inflow, "a", 1)
    assert not inflow.starves
    inflow.needs(2)
    assert inflow.starves


def test_past_the_end_nothing_is_lacking(inflow: Inflow) -> None:
    """Rows are padded there, and never before: C20."""
    give_prompt(inflow, "p")
    give_rows(inflow, "a", 1)
    inflow.needs(2)
    assert inflow.starves
    inflow.answered(None, 0, last=True, kept=False)
    assert not inflow.starves
    assert inflow.ended


def test_rows_that_come_with_the_end_count(inflow: Inflow) -> None:
    give_prompt(inflow, "p")
    give_rows(inflow, "a", 2, last=True)
    assert (inflow.rows, inflow.ended) == (2, True)


def test_a_chunk_of_rows_is_used_up_when_the_row_behind_it_is_needed(inflow: Inflow) -> None:
    """Token r is computed with row r: while the last row's step is ahead, the chunk is in use."""
    give_prompt(inflow, "p")
    give_rows(inflow, "a", 2)
    give_rows(inflow, "b", 1)
    assert [inflow.needs(rows) for rows in (1, 2, 3, 4)] == [[], [], ["a"], ["b"]]


def test_a_chunk_is_used_up_before_the_next_one_has_come(inflow: Inflow) -> None:
    """A producer that may have one chunk under way must get on."""
    give_prompt(inflow, "p")
    give_rows(inflow, "a", 1)
    inflow.needs(1)
    assert inflow.needs(2) == ["a"]
    assert inflow.starves


def test_needing_the_same_rows_again_uses_nothing(inflow: Inflow) -> None:
    give_rows(inflow, "a", 1)
    inflow.needs(2)
    assert inflow.needs(2) == []


def test_several_chunks_can_be_used_up_at_once(inflow: Inflow) -> None:
    for key in "abc":
        give_rows(inflow, key, 1)
    assert inflow.needs(3) == ["a", "b"]


# --- generation -----------------------------------------------------------------------------------


def test_chunks_run_in_their_order_and_are_used_up_by_their_output(inflow: Inflow) -> None:
    plans = {key: PromptPlan((number,)) for number, key in enumerate("ab")}
    for key, plan in plans.items():
        assert give_plan(inflow, key, plan) == []
    for key, plan in plans.items():
        assert inflow.next_plan() is plan
        assert inflow.ran() == [key]
    assert inflow.next_plan() is None


def test_a_chunk_that_an_adapter_absorbs_never_runs(inflow: Inflow) -> None:
    assert absorb(inflow, "a") == ["a"]
    assert inflow.next_plan() is None


def test_an_end_that_owes_a_last_output_runs_without_a_key(inflow: Inflow) -> None:
    give_plan(inflow, None, last=True)
    assert inflow.ended
    assert inflow.next_plan() is PLAN
    assert inflow.ran() == []


def test_an_output_without_a_running_chunk_uses_nothing(inflow: Inflow) -> None:
    give_plan(inflow, "a")
    assert inflow.ran() == []
    assert inflow.close() == ["a"]


# --- the end --------------------------------------------------------------------------------------


def test_closing_counts_everything_as_used(inflow: Inflow) -> None:
    """C1: on the way to the worker, planned, running, rows: an abort leaves nothing in use."""
    inflow.accepted(["fetched"])
    give_plan(inflow, "running")
    give_plan(inflow, "planned")
    give_rows(inflow, "rows", 3)
    inflow.next_plan()
    assert sorted(inflow.close()) == ["fetched", "planned", "rows", "running"]


def test_after_closing_nothing_is_reported_again(inflow: Inflow) -> None:
    """An answer may be on its way when the request ends."""
    give_prompt(inflow, "p")
    give_rows(inflow, "a", 1)
    give_plan(inflow, "b")
    inflow.close()
    assert inflow.close() == []
    assert inflow.scheduled() == []
    assert inflow.needs(9) == []
    inflow.next_plan()
    assert inflow.ran() == []
    assert inflow.answered("late", 0, last=True, kept=False) == []


# --- a whole stream -------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 4), min_size=1, max_size=10), st.integers(0, 5))
def test_a_stream_that_runs_through_gives_its_chunks_back_in_order(
    rows: list[int], padded: int
) -> None:
    """Each chunk is given back with the step behind its last row, also past the end."""
    inflow = Inflow("codes", stream=True)
    give_prompt(inflow, "prompt")
    for number, count in enumerate(rows):
        give_rows(inflow, f"k{number}", count, last=number == len(rows) - 1)
    used = [key for step in range(1, sum(rows) + padded + 1) for key in inflow.needs(step)]
    left = [] if padded else [f"k{len(rows) - 1}"]
    assert used == [f"k{number}" for number in range(len(rows) - len(left))]
    assert sorted(inflow.close()) == sorted(["prompt", *left])
