"""A stage's process ends, idle or with requests in flight: who fails, how fast, what is left."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import msgspec
import pytest

from antiphon.errors import AntiphonError
from antiphon.testing.fault_table import OK, Fault
from fault_server import QUICK, Call, FaultServer, nothing_left, serves, submitted

WORDS = " ".join(["one"] * 40 + ["two"])  # of a slow request, whole
MANY = msgspec.structs.replace(QUICK, restarts=100)


@pytest.fixture(scope="module")
def server() -> Iterator[FaultServer]:
    with nothing_left(), FaultServer(supervision=MANY) as made:
        yield made


def expect(fault: Fault, calls: list[Call], began_s: float, stage: str) -> None:
    """All have failed as the table says."""
    assert fault.error is not None
    assert fault.within_s is not None
    for call in calls:
        call.wait()
        assert type(call.error) is fault.error
        assert f"'{stage}" in str(call.error)
        assert call.over_s - began_s < fault.within_s


@pytest.mark.parametrize("stage", ["thinker", "talker", "code2wav"])
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, marks=pytest.mark.fault("stage-sigkill-idle")),
        pytest.param(signal.SIGTERM, marks=pytest.mark.fault("stage-sigterm-idle")),
    ],
)
def test_a_stage_that_has_nothing_to_do(
    server: FaultServer, fault: Fault, number: signal.Signals, stage: str
) -> None:
    before = server.restarts(stage)
    server.kill(stage, number)
    server.wait_health(*fault.health, OK)
    assert server.restarts(stage) - before == (1 if fault.restarted else 0)
    assert fault.error is None
    serves(server)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, marks=pytest.mark.fault("stage-sigkill-loaded")),
        pytest.param(signal.SIGTERM, marks=pytest.mark.fault("stage-sigterm-loaded")),
    ],
)
def test_a_stage_with_requests_in_flight(
    server: FaultServer, fault: Fault, number: signal.Signals
) -> None:
    """C93: the bound ones fail; those that the stage is done with, or that never need it, go on."""
    before = server.restarts("talker")
    bound = submitted(server, *["talker=hold"] * 4)
    past = submitted(server, *["code2wav=late"] * 2)
    text = submitted(server, *["thinker=slow"] * 2, modalities=("text",))
    server.wait_for(lambda: all(call.started for call in past))
    server.run(server.omni.inspect())  # the talker has given on what it had for them
    began_s = time.monotonic()
    server.kill("talker", number)
    expect(fault, bound, began_s, "talker")
    server.wait_health(*fault.health)
    expect(fault, [Call(server)], time.monotonic(), "talker")  # new, and needs what is not there
    for call in past + text:
        call.wait()
        assert call.error is None
    assert {call.text for call in text} == {WORDS}
    server.wait_health(OK)
    assert server.restarts("talker") - before == (1 if fault.restarted else 0)
    serves(server)


@pytest.mark.fault("stage-defect")
def test_a_stage_that_cannot_go_on(server: FaultServer, fault: Fault) -> None:
    """What it raises is no request's fault: its process ends."""
    bound = submitted(server, "talker=hold", "talker=hold")
    (text,) = submitted(server, "thinker=slow", modalities=("text",))
    began_s = time.monotonic()
    culprit = Call(server, "talker=defect")
    expect(fault, [*bound, culprit], began_s, "talker")
    assert "nobody is to blame" in str(culprit.error)
    server.wait_health(*fault.health, OK)
    text.wait()
    assert (text.error, text.text) == (None, WORDS)
    serves(server)


@pytest.mark.fault("stage-unreadable")
def test_a_stage_that_says_what_cannot_be_read(server: FaultServer, fault: Fault) -> None:
    before = server.restarts("talker")
    bound = submitted(server, "talker=hold")
    began_s = time.monotonic()
    culprit = Call(server, "talker=garbage")
    expect(fault, [*bound, culprit], began_s, "talker")
    server.wait_health(*fault.health, OK)
    assert server.restarts("talker") - before == (1 if fault.restarted else 0)
    serves(server)


@pytest.mark.fault("stage-again-and-again")
def test_a_stage_that_ends_too_often(fault: Fault) -> None:
    """It stays down; what does not need it is served."""
    once = msgspec.structs.replace(QUICK, restarts=1)
    with nothing_left(), FaultServer(supervision=once) as server:
        server.kill("talker")
        server.wait_health(*fault.health, OK)
        bound = submitted(server, "talker=hold")
        began_s = time.monotonic()
        server.kill("talker")
        expect(fault, bound, began_s, "talker")
        body = server.wait_health(*fault.health)
        server.wait_word("talker", "gone")
        assert body["stages"]["talker"]["replicas"][0]["reason"]
        assert fault.restarted is None
        began_s = time.monotonic()
        refused = Call(server)
        expect(fault, [refused], began_s, "talker")
        text = Call(server, modalities=("text",))
        text.wait()
        assert (text.error, text.text) == (None, "two")


@pytest.mark.fault("replica-sigkill")
def test_one_of_two_replicas(fault: Fault) -> None:
    """Only requests that it has fail; new ones go to the other."""
    with nothing_left(), FaultServer(replicas={"talker": 2}) as server:
        calls = submitted(server, *["talker=slow"] * 6)
        began_s = time.monotonic()
        server.kill("talker/1")
        server.wait_health(*fault.health)
        new = Call(server)
        for call in [*calls, new]:
            call.wait()
        failed = [call for call in calls if call.error is not None]
        assert len(failed) == 3
        expect(fault, failed, began_s, "talker")
        assert new.error is None
        server.wait_health(OK)
        assert server.restarts("talker") == (1 if fault.restarted else 0)
        serves(server)


def test_errors_of_one_fault_are_not_one_object(server: FaultServer) -> None:
    """Each caller raises its own."""
    bound = submitted(server, "talker=hold", "talker=hold")
    server.kill("talker")
    errors: list[AntiphonError | None] = []
    for call in bound:
        call.wait()
        errors.append(call.error)
    assert errors[0] is not errors[1]
    server.wait_health(OK)
