"""The sampled-logprob contract."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.logprobs import ViolationKind, validate


def test_arrays_that_describe_the_sampled_tokens_pass() -> None:
    ids = np.array([[5, 1, 2], [7, 7, 3]], dtype=np.int32)
    values = np.array([[-0.5, -1.0, -2.0], [-0.1, -0.1, -math.inf]], dtype=np.float32)
    assert validate([5, 7], ids, values) is None


def test_plain_lists_are_accepted() -> None:
    assert validate([5], [[5]], [[-0.5]]) is None


@pytest.mark.parametrize("arrays", [(None, None), ([], []), ([[1]], [[math.nan]])])
def test_without_sampled_tokens_there_is_nothing_to_check(arrays: tuple[object, object]) -> None:
    assert validate([], *arrays) is None  # type: ignore[arg-type]


CASES = {
    "no ids": ([5], None, [[-1.0]], ViolationKind.MISSING, None),
    "no values": ([5], [[5]], None, ViolationKind.MISSING, None),
    "ids of rank 1": ([5], [5], [[-1.0]], ViolationKind.RANK, None),
    "values of rank 3": ([5], [[5]], [[[-1.0]]], ViolationKind.RANK, None),
    "ragged ids": ([5, 6], [[5, 1], [6]], [[-1.0], [-1.0]], ViolationKind.RANK, None),
    "a row too few": ([5, 6], [[5]], [[-1.0]], ViolationKind.ROWS, 1),
    "a row too many": ([5], [[5], [6]], [[-1.0], [-1.0]], ViolationKind.ROWS, 1),
    "values short": ([5, 6], [[5], [6]], [[-1.0]], ViolationKind.ROWS, 1),
    "no column": ([5], np.empty((1, 0)), np.empty((1, 0)), ViolationKind.COLUMNS, None),
    "uneven": ([5], [[5, 6]], [[-1.0]], ViolationKind.COLUMNS, None),
    "other token": ([5, 6], [[5], [9]], [[-1.0], [-1.0]], ViolationKind.TOKEN_MISMATCH, 1),
    "nan": ([5, 6], [[5], [6]], [[-1.0], [math.nan]], ViolationKind.NOT_FINITE, 1),
    "minus infinity": ([5], [[5]], [[-math.inf]], ViolationKind.NOT_FINITE, 0),
}


@pytest.mark.parametrize("case", CASES)
def test_each_violation_is_named_with_its_row(case: str) -> None:
    sampled, ids, values, kind, row = CASES[case]
    violation = validate(sampled, ids, values)  # type: ignore[arg-type]
    assert violation is not None
    assert (violation.kind, violation.row) == (kind, row)
    assert violation.message.startswith("Sampled-logprob contract broken: ")
    assert row is None or str(row) in violation.message


def test_only_the_sampled_token_must_be_finite() -> None:
    assert validate([5], [[5, 6]], [[-1.0, -math.inf]]) is None


@given(
    sampled=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6),
    top=st.integers(0, 5),
    data=st.data(),
)
def test_one_changed_id_is_found_where_it_is(
    sampled: list[int], top: int, data: st.DataObject
) -> None:
    ids = np.tile(np.array(sampled, dtype=np.int64)[:, None], (1, top + 1))
    values = np.full(ids.shape, -1.0, dtype=np.float32)
    assert validate(sampled, ids, values) is None
    row = data.draw(st.integers(0, len(sampled) - 1))
    ids[row, 0] += 1
    violation = validate(sampled, ids, values)
    assert violation is not None
    assert (violation.kind, violation.row) == (ViolationKind.TOKEN_MISMATCH, row)
