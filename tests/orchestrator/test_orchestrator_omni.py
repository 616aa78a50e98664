"""`AsyncOmni` and `Omni` before their stages run, and when these do not start."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from antiphon import AsyncOmni, Omni, OmniRequest
from antiphon.errors import InvalidRequestError, ModelUnavailableError, ShutdownError
from sample_pipeline import TOPOLOGY

MISSING = replace(
    TOPOLOGY,
    stages=tuple(replace(stage, model="sample_pipeline:missing") for stage in TOPOLOGY.stages),
)


async def test_a_pipeline_that_does_not_run_says_so() -> None:
    omni = AsyncOmni(TOPOLOGY)
    with pytest.raises(ShutdownError, match="call start"):
        await omni.generate(OmniRequest(text="hi"))
    with pytest.raises(ShutdownError, match="call start"):
        await omni.inspect()
    with pytest.raises(InvalidRequestError, match="call prepare"):
        await omni.check(OmniRequest(text="hi"))
    with pytest.raises(ShutdownError, match="call start"):
        await omni.session().__aenter__()
    assert await omni.abort("mine") is False
    assert (omni.num_running, omni.stage_pids) == (0, {})
    await omni.close()  # harmless


async def test_a_start_that_failed_can_be_tried_again() -> None:
    omni = AsyncOmni(MISSING)
    for _ in range(2):
        with pytest.raises(ModelUnavailableError, match="not in the cache"):
            await omni.start()
    await omni.close()


def test_a_start_that_failed_leaves_no_thread() -> None:
    with pytest.raises(ModelUnavailableError):
        Omni(MISSING)
    assert "antiphon" not in [thread.name for thread in threading.enumerate()]
