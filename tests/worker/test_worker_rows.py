"""Rows of a request: every confirmed position once and in order, whatever a step computes."""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from antiphon.payload.ref import Layout
from antiphon.worker.device import HostCopy
from antiphon.worker.rows import CopiedRows, PendingRows, RowLog


class Copied(HostCopy):
    """Rows that are in host memory already."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.waits = 0

    def wait(self) -> torch.Tensor:
        self.waits += 1
        return self.tensor


def step(first: int, count: int, mark: float = 0.0) -> PendingRows:
    """Rows of positions first… of which each says its position, and `mark` which step it was."""
    rows = torch.stack([torch.tensor([float(p), mark]) for p in range(first, first + count)])
    return PendingRows(first, count, CopiedRows(Copied(rows), 0, count), {})


def positions(log: RowLog, confirmed: int) -> list[float]:
    """The positions that the released rows say they are."""
    found: list[float] = []
    for released in log.confirm(confirmed):
        assert released.hidden is not None
        first = released.first_position
        assert released.hidden[:, 0].tolist() == list(range(first, first + len(released.hidden)))
        found += released.hidden[:, 0].tolist()
    return found


def marks(log: RowLog, confirmed: int) -> list[tuple[float, float]]:
    """Position and mark of each released row."""
    rows = [row for released in log.confirm(confirmed) for row in released.hidden.tolist()]
    return [(position, mark) for position, mark in rows]


def test_rows_wait_until_their_tokens_are_accepted() -> None:
    log = RowLog()
    log.append(step(0, 4))
    assert positions(log, 0) == []
    assert positions(log, 3) == [0, 1, 2]
    assert positions(log, 3) == []
    log.append(step(4, 1))
    assert positions(log, 5) == [3, 4]


def test_a_replay_after_preemption_is_not_repeated() -> None:
    """C34: positions 0 to 5 are computed twice; the first computation counts."""
    log = RowLog()
    log.append(step(0, 4, mark=1))
    log.append(step(4, 1, mark=1))
    assert positions(log, 5) == [0, 1, 2, 3, 4]
    log.append(step(0, 6, mark=2))
    (released,) = log.confirm(6)
    assert released.hidden is not None
    assert released.hidden.tolist() == [[5.0, 2.0]]


def test_what_was_computed_with_a_rejected_token_is_never_released() -> None:
    """C92: the position comes from the step that computed it with the token that was accepted."""
    log = RowLog()
    log.append(step(0, 3))
    log.append(step(3, 3))  # 4 and 5 belong to drafts that were rejected
    assert positions(log, 4) == [0, 1, 2, 3]
    log.append(step(4, 1, mark=9))
    assert marks(log, 5) == [(4, 9)]
    log.append(step(5, 1, mark=10))
    assert marks(log, 6) == [(5, 10)]


def test_rows_of_several_steps_are_cut_where_the_later_one_begins() -> None:
    log = RowLog()
    log.append(step(0, 4, mark=1))
    log.append(step(2, 3, mark=2))
    assert marks(log, 3) == [(0, 1), (1, 1), (2, 2)]
    assert marks(log, 5) == [(3, 2), (4, 2)]


def test_rows_are_wanted_from_the_first_position_on() -> None:
    """A session's segment begins where the history ends, also when that is computed again."""
    log = RowLog(first=3)
    log.append(step(0, 5))
    assert positions(log, 2) == []
    assert positions(log, 5) == [3, 4]


def test_nothing_is_kept_of_what_was_released() -> None:
    """C24, C25: over 10,000 steps, with a replay now and then."""
    log = RowLog()
    for position in range(10_000):
        log.append(step(position, 1))
        if position % 1000 == 999:
            log.append(step(0, position + 1))
        log.confirm(position)  # one step behind
        assert len(log._pending) <= 2


def test_a_lost_step_is_noticed() -> None:
    log = RowLog()
    log.append(step(0, 2))
    log.append(step(3, 2))
    with pytest.raises(AssertionError, match="position 2"):
        log.confirm(5)


@dataclass(frozen=True)
class Move:
    """Compute `count` positions, with `replay` from 0 again; accept up to `accepted` new ones."""

    count: int
    replay: bool
    accepted: int


MOVES = st.lists(
    st.builds(Move, st.integers(1, 7), st.booleans(), st.integers(0, 7)), min_size=1, max_size=30
)


@given(MOVES)
def test_every_confirmed_position_comes_once_and_in_order(moves: list[Move]) -> None:
    """C91, C92: chunks of any size, replays at any moment, positions computed ahead; each row is of
    the last step that computed it.
    """
    log = RowLog()
    computed = confirmed = 0
    newest: dict[int, float] = {}
    seen: list[tuple[float, float]] = []
    expected: list[tuple[float, float]] = []
    for number, move in enumerate(moves):
        first = 0 if move.replay else computed
        log.append(step(first, move.count, mark=number))
        computed = first + move.count
        newest |= dict.fromkeys(range(first, computed), number)
        if computed > confirmed:
            before, confirmed = confirmed, min(computed, confirmed + move.accepted)
            seen += marks(log, confirmed)
            expected += [(position, newest[position]) for position in range(before, confirmed)]
        computed = max(confirmed, min(computed, confirmed + 2))  # rejected drafts are recomputed
    assert seen == expected


@given(st.lists(st.integers(1, 5), min_size=1, max_size=20))
def test_side_outputs_are_cut_like_the_rows(chunks: list[int]) -> None:
    """Per-token ones follow the positions, per-request ones come whole, shared ones come once."""
    log = RowLog(side_names=("each", "one", "all"))
    first = 0
    for count in chunks:
        each = torch.arange(first, first + count)
        side = {
            "each": (Layout.PER_TOKEN, CopiedRows(Copied(each), 0, count)),
            "one": (Layout.PER_REQUEST, CopiedRows(Copied(torch.tensor([[count]])), 0, 1)),
            "all": (Layout.SHARED, CopiedRows(Copied(torch.arange(3)), 0, 1 << 62)),
        }
        log.append(PendingRows(first, count, None, side))
        first += count
    released = [piece for upto in range(first + 1) for piece in log.confirm(upto)]
    assert torch.cat([piece.side["each"] for piece in released]).tolist() == list(range(first))
    assert all(piece.side["one"].shape == (1, 1) for piece in released)
    assert [i for i, piece in enumerate(released) if "all" in piece.side] == [0]
    assert released[0].side["all"].tolist() == [0, 1, 2]
    assert all(piece.hidden is None for piece in released)


def test_nobody_waits_for_a_copy_before_its_rows_are_released() -> None:
    """Materialisation stays off the critical path: appending only notes where the rows will be."""
    copied = Copied(torch.zeros(2, 1))
    log = RowLog()
    log.append(PendingRows(0, 2, CopiedRows(copied, 0, 2), {}))
    log.confirm(0)
    assert copied.waits == 0
    log.confirm(1)
    assert copied.waits == 1
