"""A stage whose workers are processes of their own: one ends, or stops; all are started again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator

import psutil
import pytest
import pytest_asyncio

from antiphon import AsyncOmni, OmniRequest
from antiphon.connector.runs import shm_directory
from antiphon.serve.service import Service
from antiphon.serve.settings import ServeSettings
from antiphon.testing.fault_table import OK, Fault
from asked import Asked, alive, says, wait
from two_workers import DEPLOYMENT, STEP_LIMIT_S, TOPOLOGY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
START_S = 300.0
HI = OmniRequest(text="hi")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service() -> AsyncIterator[Service]:
    """A pipeline that is served; the engine starts once for all tests, and once after each."""
    before = set(shm_directory().glob("antiphon-*"))
    omni = AsyncOmni(TOPOLOGY, deployment=DEPLOYMENT)
    made = Service(omni, ServeSettings(port=0))
    await made.start()
    yield made
    processes = [omni.stage_pids["thinker"], *workers(omni)]
    await made.close()
    await wait(lambda: not any(map(alive, processes)), 10)
    assert set(shm_directory().glob("antiphon-*")) == before


def workers(omni: AsyncOmni) -> list[int]:
    """Process ids of the workers, in the order of their ranks."""
    children = psutil.Process(omni.stage_pids["thinker"]).children()
    return [child.pid for child in children if "Worker" in " ".join(child.cmdline())]


async def hurt(service: Service, fault: Fault, number: signal.Signals, after_s: float) -> None:
    """Send a worker the signal, with requests in flight if some are to fail."""
    omni = service.omni
    old = [omni.stage_pids["thinker"], *workers(omni)]
    assert len(old) == 3
    restarts = omni.stage_states["thinker"].replicas[0].restarts
    asked = [Asked(omni, HI) for _ in range(4)] if fault.error else []
    for request in asked:
        await request.begun.wait()
    began_s = time.monotonic()
    os.kill(old[-1], number)
    await says(service, [*fault.health, OK], START_S)
    for request in asked:
        await request.task
        assert type(request.error) is fault.error
        assert "'thinker'" in str(request.error)
        assert request.over_s - began_s < after_s + (fault.within_s or 0)
    assert not any(map(alive, old))
    assert fault.restarted
    assert omni.stage_states["thinker"].replicas[0].restarts == restarts + 1
    after = Asked(omni, HI)
    await after.task
    assert after.error is None


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, marks=pytest.mark.fault("worker-sigkill-idle")),
        pytest.param(signal.SIGKILL, marks=pytest.mark.fault("worker-sigkill-loaded")),
    ],
)
async def test_a_worker_that_is_killed(
    service: Service, fault: Fault, number: signal.Signals
) -> None:
    await hurt(service, fault, number, 0.0)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.fault("worker-sigstop-loaded")
async def test_a_worker_that_is_stopped(service: Service, fault: Fault) -> None:
    """The stage's process answers, and its step does not end."""
    await hurt(service, fault, signal.SIGSTOP, STEP_LIMIT_S)
