"""Spoken answers that may be referred to by id."""

from __future__ import annotations

from antiphon.serve.past_answers import KEEP, KEEP_CHARS, KEEP_S, PastAnswers
from antiphon.testing.clock import ManualClock


def test_an_answer_is_known_for_a_while() -> None:
    clock = ManualClock()
    past = PastAnswers(clock)
    id = past.new_id()
    assert past.transcript(id) is None
    assert past.keep(id, "one") == int(clock()) + KEEP_S
    clock.advance(KEEP_S - 1)
    assert past.transcript(id) == "one"
    clock.advance(2)
    assert past.transcript(id) is None


def test_the_oldest_go_first() -> None:
    past = PastAnswers()
    ids = [past.new_id() for _ in range(KEEP + 1)]
    for id in ids:
        past.keep(id, id)
    assert past.transcript(ids[0]) is None
    assert past.transcript(ids[1]) == ids[1]
    past.keep("long", "x" * (KEEP_CHARS - 100))
    assert past.transcript("long") is not None
    assert past.transcript(ids[-10]) is None
    past.check_integrity()
