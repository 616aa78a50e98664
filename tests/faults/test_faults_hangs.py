"""A stage's process that lives and does nothing: noticed, ended, started again; nobody waits on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import msgspec
import pytest

from antiphon.testing.fault_table import OK, Fault
from fault_server import (
    QUICK,
    SILENCE_S,
    STEP_LIMIT_S,
    Call,
    FaultServer,
    nothing_left,
    serves,
    submitted,
)

WATCHED = msgspec.structs.replace(QUICK, silence_s=SILENCE_S, restarts=100)


@pytest.fixture(scope="module")
def server() -> Iterator[FaultServer]:
    with nothing_left(), FaultServer(supervision=WATCHED) as made:
        yield made


@pytest.mark.fault("stage-sigstop-idle")
def test_a_stopped_stage_that_has_nothing_to_do(server: FaultServer, fault: Fault) -> None:
    before = server.restarts("talker")
    server.kill("talker", signal.SIGSTOP)
    server.wait_health(*fault.health, OK)
    assert server.restarts("talker") - before == (1 if fault.restarted else 0)
    serves(server)


@pytest.mark.fault("stage-sigstop-loaded")
def test_a_stopped_stage_with_requests_in_flight(server: FaultServer, fault: Fault) -> None:
    """C14: they fail when its silence has lasted for as long as it may."""
    assert (fault.after, fault.error) != (None, None)
    bound = submitted(server, *["talker=hold"] * 4)
    text = submitted(server, *["thinker=slow"] * 2, modalities=("text",))
    began_s = time.monotonic()
    server.kill("talker", signal.SIGSTOP)
    server.wait_health(*fault.health, OK)
    for call in bound:
        call.wait()
        assert type(call.error) is fault.error
        assert "'talker' gave no sign of life" in str(call.error)
        assert call.over_s - began_s < SILENCE_S + (fault.within_s or 0)
    for call in text:
        call.wait()
        assert call.error is None
    serves(server)


@pytest.mark.fault("stage-sigstop-deadline")
def test_a_deadline_that_passes_while_a_stage_is_stopped(server: FaultServer, fault: Fault) -> None:
    """C14: the caller hears of it in time, though the stage acknowledges nothing."""
    deadline_s = 0.2
    server.kill("talker", signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        call = Call(server, deadline_s=deadline_s)
        call.wait()
        assert type(call.error) is fault.error
        assert call.over_s - began_s < deadline_s + (fault.within_s or 0)
    finally:
        os.kill(server.pids["talker"], signal.SIGCONT)
    server.wait_health(OK)
    serves(server)


@pytest.mark.fault("stage-sigcont-in-time")
def test_a_stage_that_goes_on_in_time(server: FaultServer, fault: Fault) -> None:
    before = server.restarts("talker")
    (call,) = submitted(server, "talker=slow")
    server.kill("talker", signal.SIGSTOP)
    server.wait_health(*fault.health)
    server.kill("talker", signal.SIGCONT)
    call.wait()
    assert type(call.error) is (fault.error or type(None))
    server.wait_health(OK)
    assert server.restarts("talker") - before == (1 if fault.restarted else 0)
    serves(server)


@pytest.mark.fault("stage-stuck")
def test_a_step_that_does_not_end(fault: Fault) -> None:
    """C14: the process answers, and has been at one step for longer than one may take."""
    limited = msgspec.structs.replace(WATCHED, step_s=STEP_LIMIT_S)
    with nothing_left(), FaultServer(supervision=limited) as server:
        bound = submitted(server, "talker=hold")
        began_s = time.monotonic()
        culprit = Call(server, "talker=hang")
        server.wait_health(*fault.health)
        for call in [*bound, culprit]:
            call.wait()
            assert type(call.error) is fault.error
            assert "'talker' has been at one step" in str(call.error)
            assert call.over_s - began_s < STEP_LIMIT_S + (fault.within_s or 0)
        server.wait_health(OK)
        assert server.restarts("talker") == (1 if fault.restarted else 0)
        serves(server)
