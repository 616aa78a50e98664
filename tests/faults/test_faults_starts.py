"""Stages that start slowly, never, or not at all: the first time, and when started again."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from antiphon import AsyncOmni
from antiphon.pipeline.deployment import Deployment
from antiphon.testing.fault_table import OK, Fault
from fake_server import FAKE
from fake_stage_process import SLOW_START_S
from fault_server import QUICK, Call, FaultServer, nothing_left, serves, start_process, wait


def refused(server: FaultServer, fault: Fault) -> None:
    """A request that needs what is not there fails at once."""
    began_s = time.monotonic()
    call = Call(server)
    call.wait()
    assert type(call.error) is fault.error
    assert call.over_s - began_s < (fault.within_s or 0)


@pytest.mark.fault("start-slow")
def test_a_slow_start(fault: Fault) -> None:
    with (
        nothing_left(),
        FaultServer(starts={"talker": ["slow"]}, ready=False) as server,
    ):
        began_s = time.monotonic()
        server.wait_health(*fault.health)
        server.wait_health(OK)
        assert time.monotonic() - began_s > SLOW_START_S / 2
        assert server.restarts("talker") == (1 if fault.restarted else 0)
        serves(server)


def pipeline(how: str, start_timeout_s: float = 20.0) -> AsyncOmni:
    """One whose talker starts in this way."""
    return AsyncOmni(
        FAKE,
        deployment=Deployment(supervision=QUICK, start_timeout_s=start_timeout_s),
        make_client=lambda spec, on_event, on_gone: start_process(
            spec, on_event, on_gone, how if spec.name == "talker" else ""
        ),
    )


async def fails(omni: AsyncOmni, fault: Fault, after_s: float, match: str) -> None:
    """The start fails as the table says, and is not tried again."""
    assert fault.error is not None
    began_s = time.monotonic()
    with pytest.raises(fault.error, match=match) as caught:
        await omni.start()
    assert type(caught.value) is fault.error
    assert time.monotonic() - began_s < after_s + (fault.within_s or 0)
    assert (fault.restarted, fault.health) == (None, ())
    await omni.close()


@pytest.mark.fault("start-never")
async def test_a_start_that_does_not_end(fault: Fault) -> None:
    with nothing_left():
        late = r"not ready after 0\.8 s: stage .*'talker'"
        await fails(pipeline("never", 0.8), fault, 0.8, late)


@pytest.mark.fault("start-broken")
async def test_a_broken_checkpoint(fault: Fault) -> None:
    """The reason that the stage gives, in its own class."""
    with nothing_left():
        await fails(pipeline("broken"), fault, 5.0, "lacks a tensor")


@pytest.mark.fault("start-killed")
async def test_a_stage_that_is_killed_while_it_starts(fault: Fault) -> None:
    with nothing_left():
        omni = pipeline("never")
        phases: list[tuple[str, str]] = []
        omni._on_progress = lambda stage, phase: phases.append((stage, phase))
        starting = asyncio.ensure_future(fails(omni, fault, 10.0, "killed by signal 9 while it"))
        await asyncio.to_thread(wait, lambda: ("talker", "loading the model") in phases)
        os.kill(omni.stage_pids["talker"], signal.SIGKILL)
        await starting


@pytest.mark.fault("restart-broken")
def test_a_checkpoint_that_has_become_broken(fault: Fault) -> None:
    """It is tried again, as often as a stage may end."""
    with nothing_left(), FaultServer(starts={"talker": ["", "broken"]}) as server:
        server.kill("talker")
        server.wait_health(*fault.health)
        refused(server, fault)
        server.wait_for(lambda: any("lacks a tensor" in n for n in server.notices), 10)
        text = Call(server, modalities=("text",))
        text.wait()
        assert text.error is None
        server.wait_health(OK)
        assert server.restarts("talker") == (2 if fault.restarted else 0)
        serves(server)


@pytest.mark.fault("restart-never")
def test_a_restart_that_does_not_end(fault: Fault) -> None:
    with nothing_left(), FaultServer(starts={"talker": ["", "never"]}) as server:
        stages = server.omni._stages
        assert stages is not None
        stages._start_timeout_s = 0.5  # for the next one alone: a whole start may take longer
        server.kill("talker")
        server.wait_health(*fault.health)
        refused(server, fault)
        server.wait_for(lambda: any("was not ready" in n for n in server.notices), 10)
        stages._start_timeout_s = 0.0
        server.wait_health(OK)
        assert server.restarts("talker") == (2 if fault.restarted else 0)
        serves(server)
