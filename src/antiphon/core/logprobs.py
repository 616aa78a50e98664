"""The sampled-logprob contract: what a worker returns must describe the tokens that it sampled.

The arrays are those of one request, cut out of the step's result by the caller: one row per sampled
token, the sampled token in the first column.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


class ViolationKind(enum.Enum):
    """The ways to break the contract, in the order in which they are looked for."""

    MISSING = "missing"  # logprobs were asked for and are not there
    RANK = "rank"  # an array is not a matrix
    ROWS = "rows"  # not one row per sampled token
    COLUMNS = "columns"  # no column, or ids and values of different width
    TOKEN_MISMATCH = "token_mismatch"  # noqa: S105 - the first column is not the sampled token
    NOT_FINITE = "not_finite"  # the sampled token's logprob is infinite or NaN


@dataclass(frozen=True, slots=True)
class Violation:
    """What is wrong, in which row (None: in the arrays as a whole), and a sentence about it."""

    kind: ViolationKind
    row: int | None
    message: str


def validate(
    sampled_ids: Sequence[int], token_ids: ArrayLike | None, logprobs: ArrayLike | None
) -> Violation | None:
    """The first violation, or None. `token_ids` and `logprobs` are [len(sampled_ids), 1 + top]."""
    if len(sampled_ids) == 0:
        return None
    if token_ids is None or logprobs is None:
        what = "token ids" if token_ids is None else "logprobs"
        return _violation(ViolationKind.MISSING, None, f"the sampled {what} are missing")
    ids, values = _array(token_ids), _array(logprobs)
    return _check_shapes(len(sampled_ids), ids, values) or _check_first_column(
        sampled_ids, ids[:, 0], values[:, 0]
    )


def _check_shapes(
    rows: int, ids: NDArray[np.generic], values: NDArray[np.generic]
) -> Violation | None:
    for name, array in (("token ids", ids), ("logprobs", values)):
        if array.ndim != 2:
            text = f"the {name} have rank {array.ndim} instead of 2"
            return _violation(ViolationKind.RANK, None, text)
    for name, array in (("token ids", ids), ("logprobs", values)):
        if array.shape[0] != rows:
            text = f"the {name} have {array.shape[0]} rows for {rows} sampled tokens"
            return _violation(ViolationKind.ROWS, min(rows, array.shape[0]), text)
    if ids.shape[1] < 1 or ids.shape[1] != values.shape[1]:
        text = f"there are {ids.shape[1]} columns of token ids and {values.shape[1]} of logprobs"
        return _violation(ViolationKind.COLUMNS, None, text)
    return None


def _check_first_column(
    sampled_ids: Sequence[int], ids: NDArray[np.generic], values: NDArray[np.generic]
) -> Violation | None:
    wrong = np.flatnonzero(ids != np.asarray(sampled_ids))
    if wrong.size:
        row = int(wrong[0])
        text = f"row {row} describes token {ids[row]} where {sampled_ids[row]} was sampled"
        return _violation(ViolationKind.TOKEN_MISMATCH, row, text)
    wrong = np.flatnonzero(~np.isfinite(values.astype(np.float64)))
    if wrong.size:
        row = int(wrong[0])
        text = f"row {row} gives {values[row]} as the logprob of its sampled token"
        return _violation(ViolationKind.NOT_FINITE, row, text)
    return None


def _array(data: ArrayLike) -> NDArray[np.generic]:
    try:
        return np.asarray(data)
    except ValueError:  # rows of unequal length are no matrix
        return np.empty(0)


def _violation(kind: ViolationKind, row: int | None, text: str) -> Violation:
    return Violation(kind, row, f"Sampled-logprob contract broken: {text}.")
