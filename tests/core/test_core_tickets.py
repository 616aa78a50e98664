"""Orders and answers: whatever a step has to say, it is sent."""

from __future__ import annotations

from dataclasses import fields

import pytest
from core_refs import chunk

from antiphon.core.tickets import (
    Accepted,
    Arrived,
    Ended,
    Fetch,
    KvAck,
    KvShip,
    StageNews,
    StageWork,
    Ticket,
)
from antiphon.errors import ErrorInfo, PayloadError

ERROR: ErrorInfo = PayloadError("broken").to_wire()
WORK = {
    "tickets": StageWork(tickets=[Ticket("r", ("codes",), {})]),
    "fetches": StageWork(fetches=[Fetch("r", chunk(), {})]),
    "discards": StageWork(discards=["k"]),
    "tokens": StageWork(tokens={"r": Accepted([1], 4)}),
    "ended": StageWork(ended=[Ended("r", keep=True)]),
    "ships": StageWork(ships=[KvShip("r", "cache", 0, 1, 3, (1, 2, 3), ((4,),))]),
    "retry": StageWork(retry=True),
}
NEWS = {
    "arrived": StageNews(arrived=[Arrived("r", None, last=True)]),
    "refs": StageNews(refs=[chunk()]),
    "failed": StageNews(failed=[("r", ERROR)]),
    "acks": StageNews(acks=[KvAck("r", 1, error=ERROR)]),
    "retry_in_s": StageNews(retry_in_s=0.0),
}


def test_nothing_to_say_is_not_sent() -> None:
    assert not StageWork()
    assert not StageNews()


@pytest.mark.parametrize("field", [field.name for field in fields(StageWork)])
def test_every_order_is_sent(field: str) -> None:
    assert WORK[field]


@pytest.mark.parametrize("field", [field.name for field in fields(StageNews)])
def test_every_answer_is_sent(field: str) -> None:
    """A retry that is due at once counts as well."""
    assert NEWS[field]
