"""Requests to a pipeline that is served and in which something ends: how and when each ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import psutil

from antiphon import AsyncOmni, OmniRequest
from antiphon.errors import AntiphonError
from antiphon.orchestrator.api import Finished, Reply, TextDelta
from antiphon.serve.service import Service
from antiphon.testing.fault_table import Health


class Asked:
    """A request that runs; `begun` with its first text."""

    def __init__(self, omni: AsyncOmni, request: OmniRequest) -> None:
        self.begun = asyncio.Event()
        self.error: AntiphonError | None = None
        self.reply: Reply | None = None
        self.over_s = 0.0
        self.task = asyncio.ensure_future(self._run(omni, request))

    async def _run(self, omni: AsyncOmni, request: OmniRequest) -> None:
        try:
            async for event in omni.stream(request):
                if isinstance(event, TextDelta):
                    self.begun.set()
                if isinstance(event, Finished):
                    self.reply = event.reply
        except AntiphonError as error:
            self.error = error
        self.over_s = time.monotonic()


def health(service: Service) -> Health:
    """What `/health` would say."""
    serves, body = service.health()
    return Health(str(body["status"]), 200 if serves else 503)


async def says(service: Service, wanted: Sequence[Health], timeout_s: float) -> None:
    """Until it has said all of these, in this order.

    Between them it may say something else: on a busy machine any stage may be silent for a while.
    """
    left = list(wanted)
    async with asyncio.timeout(timeout_s):
        while left:
            if health(service) == left[0]:
                left.pop(0)
            await asyncio.sleep(0.005)


async def wait(condition: Callable[[], object], timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  nobody tells of a process's end
            await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
