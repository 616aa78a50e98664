"""The clock and the callers: what is around a server."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
import pytest

from antiphon.testing.fault_table import Fault
from fault_server import QUICK, SILENCE_S, FaultServer, nothing_left, submitted

DAY_S = 86_400.0


@pytest.fixture(scope="module")
def server() -> Iterator[FaultServer]:
    watched = msgspec.structs.replace(QUICK, silence_s=SILENCE_S)
    with nothing_left(), FaultServer(supervision=watched) as made:
        yield made


@pytest.mark.fault("wall-clock-jumps")
def test_the_wall_clock_jumps(
    server: FaultServer, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request has a deadline by it, and no stage's silence is counted by it."""
    real = time.time
    for jump_s in (DAY_S, -DAY_S, 0.0):
        (call,) = submitted(server, "thinker=slow", deadline_s=10.0)
        monkeypatch.setattr(time, "time", lambda by=jump_s: real() + by)
        call.wait()
        assert type(call.error) is (fault.error or type(None))
        assert (server.health()[0],) == fault.health
    assert [server.restarts(stage) for stage in server.pids] == [0, 0, 0]
    server.check_clean()


@pytest.mark.fault("client-leaves")
def test_a_caller_that_leaves(server: FaultServer, fault: Fault) -> None:
    (call,) = submitted(server, "talker=hold")
    (other,) = submitted(server, "thinker=slow", modalities=("text",))
    began_s = time.monotonic()
    call.leave()
    server.wait_for(lambda: server.omni.num_running <= 1)
    assert time.monotonic() - began_s < (fault.within_s or 0)
    other.wait()
    assert other.error is None
    assert (server.health()[0],) == fault.health
    server.check_clean()
