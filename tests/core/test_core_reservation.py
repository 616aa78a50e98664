"""The books of promised cache blocks."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from antiphon.core.reservation import Reservations


def lined_up(*blocks: int, total: int = 10) -> Reservations:
    """Requests "0", "1", … in line, in this order."""
    books = Reservations(total)
    for index, need in enumerate(blocks):
        books.line_up(str(index), need, (0, index))
    return books


def let_in_all(books: Reservations) -> list[str]:
    found = []
    while books.opens:
        found.append(books.let_in())
    return found


def test_those_that_fit_beside_each_other_are_let_in() -> None:
    books = lined_up(4, 6, 1)
    assert let_in_all(books) == ["0", "1"]
    assert books.reserved == 10
    assert books.waiting() == ["2"]
    books.check_integrity()


def test_a_small_one_does_not_overtake_a_large_one() -> None:
    """C37: the large one would starve."""
    books = lined_up(6, 5, 1)
    assert let_in_all(books) == ["0"]
    books.leave("0")
    assert let_in_all(books) == ["1", "2"]


def test_the_line_is_ordered_by_place_and_not_by_arrival() -> None:
    books = Reservations(3)
    books.line_up("late", 3, (0, 9.0))
    books.line_up("early", 3, (0, 2.0))
    books.line_up("urgent", 3, (-1, 50.0))
    assert books.waiting() == ["urgent", "early", "late"]
    assert books.first == "urgent"


def test_one_that_never_fits_is_not_taken() -> None:
    """C13."""
    books = lined_up(total=5)
    assert books.fits(5)
    assert not books.fits(6)
    with pytest.raises(ValueError, match="x needs 6 of 5 blocks"):
        books.line_up("x", 6, (0, 0))
    books.check_integrity()


def test_lining_up_again_changes_nothing() -> None:
    books = lined_up(4, 4, 4)
    let_in_all(books)
    books.line_up("0", 9, (0, 0))
    books.line_up("2", 9, (0, 0))
    assert (books.of("0"), books.of("2")) == (4, None)
    books.leave("2")
    assert books.waiting() == []


def test_blocks_come_back_once() -> None:
    """I2."""
    books = lined_up(4, 4)
    let_in_all(books)
    for _ in range(2):
        books.leave("0")
        assert books.reserved == 4
    books.leave("unknown")
    books.check_integrity()


def test_what_is_not_needed_any_more_is_given_back() -> None:
    books = lined_up(8, 5)
    let_in_all(books)
    books.keep("0", 9)  # never more than it has
    assert books.of("0") == 8
    books.keep("0", 3)
    assert books.reserved == 3
    assert let_in_all(books) == ["1"]
    books.leave("0")
    assert books.reserved == 5


def test_nobody_is_let_in_who_does_not_fit() -> None:
    books = lined_up(6, 6)
    let_in_all(books)
    with pytest.raises(ValueError, match="does not fit"):
        books.let_in()


class BooksMachine(RuleBasedStateMachine):
    """Any order of calls, against a list of requests."""

    def __init__(self) -> None:
        super().__init__()
        self.books = Reservations(12)
        self.line: dict[str, tuple[tuple[float, float], int]] = {}
        self.held: dict[str, int] = {}
        self.count = 0

    @rule(blocks=st.integers(0, 12), urgency=st.integers(0, 1), arrival=st.integers(0, 5))
    def line_up(self, blocks: int, urgency: int, arrival: int) -> None:
        uid = f"r{self.count}"
        self.count += 1
        self.books.line_up(uid, blocks, (urgency, arrival))
        self.line[uid] = ((urgency, arrival), blocks)

    @rule()
    def let_in(self) -> None:
        order = sorted(self.line, key=lambda uid: (self.line[uid][0], uid))
        free = 12 - sum(self.held.values())
        assert self.books.opens == bool(order and self.line[order[0]][1] <= free)
        if self.books.opens:
            uid = self.books.let_in()
            assert uid == order[0]
            self.held[uid] = self.line.pop(uid)[1]

    @precondition(lambda self: self.count)
    @rule(number=st.integers(0, 50))
    def leave(self, number: int) -> None:
        uid = f"r{number % self.count}"
        self.books.leave(uid)
        self.line.pop(uid, None)
        self.held.pop(uid, None)

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 50), blocks=st.integers(0, 12))
    def keep(self, number: int, blocks: int) -> None:
        uid = sorted(self.held)[number % len(self.held)]
        self.books.keep(uid, blocks)
        self.held[uid] = min(self.held[uid], blocks)

    @invariant()
    def agrees(self) -> None:
        self.books.check_integrity()
        assert self.books.holders() == self.held.keys()
        assert set(self.books.waiting()) == self.line.keys()
        assert self.books.reserved == sum(self.held.values()) <= 12


TestBooks = BooksMachine.TestCase
TestBooks.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
