"""A message between two stages, or to the server, that never comes: nobody waits for ever."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from antiphon.testing.fault_table import OK, Fault
from fault_server import QUICK, Call, FaultServer, nothing_left, submitted

DEADLINE_S = 0.2


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with nothing_left(), FaultServer(supervision=QUICK) as made:
        yield made


def fails(server: FaultServer, fault: Fault, script: str, deadline_s: float) -> None:
    """The request ends in time, and nobody else is concerned."""
    (other,) = submitted(server, "thinker=slow", modalities=("text",))
    began_s = time.monotonic()
    call = Call(server, script, deadline_s=deadline_s)
    call.wait()
    assert type(call.error) is fault.error
    assert call.over_s - began_s < deadline_s + (fault.within_s or 0)
    other.wait()
    assert other.error is None
    assert server.health()[0] == OK
    assert fault.health == (OK,)


@pytest.mark.fault("step-lost")
def test_an_output_that_is_lost(server: FaultServer, fault: Fault) -> None:
    fails(server, fault, "code2wav=mute", DEADLINE_S)
    server.check_clean()


@pytest.mark.fault("used-lost")
def test_a_receipt_that_is_lost(server: FaultServer, fault: Fault) -> None:
    """What stays is the server's record of a chunk, until the consumer's process ends."""
    call = Call(server, "talker=hoard")
    call.wait()
    assert type(call.error) is (fault.error or type(None))
    server.wait_for(lambda: server.omni.num_running == 0)
    assert server.on_loop(lambda: server.omni._router.chunks_under_way) == 1
    assert fault.left != "nothing"
    assert server.files() == set()
    server.replace("talker")
    server.check_clean()


@pytest.mark.fault("aborted-lost")
def test_an_acknowledgement_that_is_lost(server: FaultServer, fault: Fault) -> None:
    """The caller has the outcome; the request's record stays until that stage's process ends."""
    fails(server, fault, "talker=keep", DEADLINE_S)
    assert server.on_loop(lambda: server.omni.num_running) == 1
    assert fault.left != "nothing"
    server.replace("talker")
    server.check_clean()
