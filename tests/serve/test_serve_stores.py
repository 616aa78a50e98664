"""The server's own stores: whole after use, and their checks see what is not."""

from __future__ import annotations

import pytest

from antiphon.observe.metrics import Metrics
from antiphon.serve.bodies import BodyBudget
from antiphon.serve.past_answers import PastAnswers
from antiphon.serve.realtime.history import History, Item
from antiphon.serve.realtime.outbox import Outbox
from antiphon.serve.realtime.server_events import ItemDeleted
from antiphon.serve.settings import ServeSettings


def test_what_waits_for_a_caller() -> None:
    outbox = Outbox(1000)
    for _ in range(3):
        outbox.put(ItemDeleted(item_id="a"))
    outbox.check_integrity()
    outbox._bytes -= 1
    with pytest.raises(AssertionError, match="miscounted"):
        outbox.check_integrity()
    outbox.drop()
    outbox.check_integrity()
    assert outbox.waiting_bytes == 0


def test_a_caller_that_lets_too_much_wait_is_told() -> None:
    outbox = Outbox(10)
    outbox.put(ItemDeleted(item_id="a"))
    outbox.check_integrity()
    outbox.overflowed.clear()
    with pytest.raises(AssertionError, match="more waits"):
        outbox.check_integrity()


def test_a_conversation() -> None:
    history = History(2, 100)
    item = Item("a", "user")
    history.insert(0, item)
    history.check_integrity()
    history.insert(1, item)
    with pytest.raises(AssertionError, match="twice"):
        history.check_integrity()


def test_bytes_of_bodies() -> None:
    budget = BodyBudget(ServeSettings())
    budget.take(10)
    budget.check_integrity(open_calls=1)
    with pytest.raises(AssertionError, match="10 bytes"):
        budget.check_integrity(open_calls=0)
    budget.give_back(10)
    budget.check_integrity(open_calls=0)


def test_past_answers() -> None:
    past = PastAnswers()
    past.keep(past.new_id(), "one")
    past.check_integrity()
    past._chars += 1
    with pytest.raises(AssertionError, match="miscounted"):
        past.check_integrity()


def test_running_requests() -> None:
    metrics = Metrics("voice")
    metrics.began("a", ("thinker",))
    metrics.check_integrity()
    assert len(metrics) == 1
    metrics._running.clear()
    with pytest.raises(AssertionError, match="over"):
        metrics.check_integrity()
