"""A stage that falls idle checks its stores; what it finds is logged and counted, or raised."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from antiphon.stage import idle_check
from antiphon.stage.idle_check import IDLE_S, IdleCheck
from antiphon.stage.messages import Abort, Deliver, Measure, Measured
from antiphon.testing.clock import ManualClock


class Stores:
    """What is checked: whole until told otherwise."""

    def __init__(self) -> None:
        self.whole = True
        self.checks = 0

    def check(self) -> None:
        self.checks += 1
        if not self.whole:
            raise AssertionError("a table disagrees")


def made(stores: Stores, clock: ManualClock, *, strict: bool = False) -> IdleCheck:
    return IdleCheck("talker", stores.check, strict=strict, clock=clock)


def test_it_is_due_once_after_each_time_that_a_stage_falls_idle() -> None:
    stores, clock = Stores(), ManualClock()
    check = made(stores, clock)
    assert check.due is None
    for _ in range(2):
        check.stepped(idle=False)
        clock.advance(IDLE_S)
        assert not check.is_due
        check.stepped(idle=True)
        assert check.due == clock() + IDLE_S
        clock.advance(IDLE_S / 2)
        assert not check.is_due
        clock.advance(IDLE_S / 2)
        assert check.is_due
        check.run()
        assert (check.is_due, check.due) == (False, None)
    assert stores.checks == 2


def test_work_puts_it_off() -> None:
    clock = ManualClock()
    check = made(Stores(), clock)
    check.stepped(idle=True)
    clock.advance(IDLE_S / 2)
    check.stepped(idle=False)
    clock.advance(IDLE_S)
    assert not check.is_due
    check.stepped(idle=True)
    assert check.due == clock() + IDLE_S


def test_what_disagrees_is_logged_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    stores = Stores()
    check = made(stores, ManualClock())
    stores.whole = False
    check.run()
    check.run()
    stores.whole = True
    check.run()
    assert check.failures == 2
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "stage 'talker'" in record.getMessage()
    assert "a table disagrees" in caplog.text


def test_for_debugging_it_is_raised() -> None:
    stores = Stores()
    check = made(stores, ManualClock(), strict=True)
    stores.whole = False
    with pytest.raises(AssertionError, match="a table disagrees"):
        check.run()


def test_an_idle_stage_wakes_for_it(roomy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a real stage, with something planted in its scheduler's tables."""
    roomy.run()
    monkeypatch.setattr(idle_check, "IDLE_S", 0.0)
    host, streams = roomy.host, roomy.scheduler.coordinator.inputs.streams
    host.step()
    assert host.next_due() <= time.monotonic()
    assert host.has_work
    streams["planted"] = object()
    with pytest.raises(AssertionError, match="outlived"):
        host.step()
    assert not host.has_work
    del streams["planted"]
    measured = roomy.ask_first(Measure(1))
    assert isinstance(measured, Measured)
    assert measured.integrity_failures == roomy.inspect().integrity_failures == 0  # it was raised


def test_an_abort_that_waits_for_nothing_is_seen(roomy: Any) -> None:
    roomy.run()
    roomy.host._aborts.append(Abort(["gone"], 7))
    with pytest.raises(AssertionError, match="an abort is not acknowledged"):
        roomy.host.check_integrity()
    roomy.host._aborts.clear()


def test_commands_that_an_awake_stage_holds_are_seen(roomy: Any) -> None:
    roomy.host._slumber.hold(Deliver([]))
    with pytest.raises(AssertionError, match="held though"):
        roomy.host.check_integrity()
    roomy.host._slumber._held.clear()
