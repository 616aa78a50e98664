"""Prompt plans: their checks, their cache salt, and the updates of a session."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.prompt_plan import (
    PromptPlan,
    PromptUpdate,
    UpdatedPrompt,
    UpdateKind,
    salt_for,
    update_prompt,
    validate_plan,
)
from antiphon.errors import AdapterError, EmptyInputError, InputTooLongError

# --- checks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "max_tokens"), [(10, 5), (10, 500), (10, None), (99, 5), (99, 0), (100, 0)]
)
def test_a_prompt_fits_if_it_leaves_room_to_sample(length: int, max_tokens: int | None) -> None:
    validate_plan(PromptPlan((1,) * length), 100, max_tokens)


@pytest.mark.parametrize(("length", "max_tokens"), [(100, 1), (100, None), (101, 0), (500, 3)])
def test_a_prompt_that_does_not_fit_is_too_long(length: int, max_tokens: int | None) -> None:
    with pytest.raises(InputTooLongError, match=f"{length} tokens.* 100"):
        validate_plan(PromptPlan((1,) * length), 100, max_tokens)


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ((), "empty prompt"),
        ((1, -1, 2), "from -1 to 2"),
        ((1, 50), "below 50"),
        ((1, 2.0), "not of type int"),
        ((True,), "not of type int"),
    ],
)
def test_what_no_adapter_may_return(ids: tuple[int, ...], said: str) -> None:
    """C43: no -1 ever becomes a prompt token."""
    with pytest.raises(AdapterError, match=said):
        validate_plan(PromptPlan(ids), 100, 5, vocab_size=50)


def test_without_a_vocabulary_ids_have_no_upper_bound() -> None:
    validate_plan(PromptPlan((10**9,)), 100, 5)


# --- salt -------------------------------------------------------------------------------------


def test_token_ids_alone_need_no_salt() -> None:
    assert salt_for(PromptPlan((1, 2)), "u1") is None


def test_unknown_conditioning_is_never_shared() -> None:
    """C99: equal placeholders of two requests must not meet in the prefix cache."""
    plan = PromptPlan((0, 0), rows_local=True)
    assert salt_for(plan, "u1") != salt_for(plan, "u2")
    assert salt_for(plan, "u1") is not None


@pytest.mark.parametrize("rows_local", [True, False])
def test_known_conditioning_is_shared_by_its_hash(rows_local: bool) -> None:
    """C30, C99."""
    plan = PromptPlan((0, 0), rows_local=rows_local, salt="hash")
    assert salt_for(plan, "u1") == salt_for(plan, "u2") == "hash"


def test_an_empty_hash_counts_as_unknown() -> None:
    assert salt_for(PromptPlan((0,), rows_local=True, salt=""), "u1") == "u1"


# --- session updates --------------------------------------------------------------------------


def extend(*ids: int) -> PromptUpdate:
    return PromptUpdate(UpdateKind.EXTEND, ids)


def window(keep: int, *ids: int) -> PromptUpdate:
    return PromptUpdate(UpdateKind.WINDOW, ids, keep)


def test_three_turns_drop_the_last_sampled_token_of_each() -> None:
    """C49: [A1 B1 C1] [A2 B2] [A3 B3] give D1, then C2 D2 E2; D1 and E2 never become context."""
    a1, b1, c1, d1, a2, b2, c2, d2, e2, a3, b3 = range(11)
    second = update_prompt([a1, b1, c1, d1], 3, extend(a2, b2), 100)
    assert second == UpdatedPrompt((a1, b1, c1, a2, b2), 3, drop_cache=False)
    third = update_prompt([*second.token_ids, c2, d2, e2], 7, extend(a3, b3), 100)
    assert third == UpdatedPrompt((a1, b1, c1, a2, b2, c2, d2, a3, b3), 7, drop_cache=False)


def test_extending_by_nothing_leaves_one_token_to_compute() -> None:
    assert update_prompt([1, 2, 3], 3, extend(), 100) == UpdatedPrompt((1, 2, 3), 2, False)


def test_replacing_drops_the_cache() -> None:
    update = PromptUpdate(UpdateKind.REPLACE, (1, 2, 3))
    assert update_prompt([1, 2, 3, 9], 3, update, 100) == UpdatedPrompt((1, 2, 3), 0, True)


def test_a_window_moves_positions_and_so_drops_the_cache() -> None:
    assert update_prompt([1, 2, 3, 4], 4, window(2, 5), 100) == UpdatedPrompt((3, 4, 5), 0, True)


def test_a_window_over_everything_is_an_extension() -> None:
    assert update_prompt([1, 2, 3], 3, window(9, 5), 100) == UpdatedPrompt((1, 2, 3, 5), 3, False)


def test_a_window_of_nothing_is_a_replacement() -> None:
    assert update_prompt([1, 2, 3], 3, window(0, 5), 100) == UpdatedPrompt((5,), 0, True)


@pytest.mark.parametrize("update", [PromptUpdate(UpdateKind.REPLACE, ()), window(0)])
def test_an_update_that_leaves_nothing_is_empty(update: PromptUpdate) -> None:
    with pytest.raises(EmptyInputError):
        update_prompt([1, 2], 2, update, 100)


def test_an_update_beyond_the_models_length_is_too_long() -> None:
    with pytest.raises(InputTooLongError, match="4 tokens"):
        update_prompt([1, 2], 2, extend(3, 4), 4)


@pytest.mark.parametrize("seen", [3, -1])
def test_impossible_counts_are_refused(seen: int) -> None:
    with pytest.raises(ValueError, match="of 2 tokens"):
        update_prompt([1, 2], seen, extend(3), 100)


def test_a_window_of_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot keep"):
        update_prompt([1, 2], 2, window(-1, 3), 100)


@given(st.data())
def test_what_is_reusable_is_unchanged_and_leaves_work(data: st.DataObject) -> None:
    """C41: computed tokens never exceed tokens, and they are those that the model has seen."""
    ids = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=12))
    seen = data.draw(st.integers(0, len(ids)))
    kind = data.draw(st.sampled_from(UpdateKind))
    new = tuple(data.draw(st.lists(st.integers(10, 19), min_size=1, max_size=5)))
    keep = data.draw(st.integers(0, 14))
    result = update_prompt(ids, seen, PromptUpdate(kind, new, keep), 100)
    assert 0 <= result.reusable < len(result.token_ids)
    assert result.reusable <= seen
    assert list(result.token_ids[: result.reusable]) == ids[: result.reusable]
    assert result.token_ids[-len(new) :] == new
    assert not (result.drop_cache and result.reusable)
    # The token that was sampled and never fed back is gone.
    assert len(result.token_ids) - len(new) <= seen
