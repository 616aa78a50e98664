"""Prompts are made off the event loop, a few at a time, within their request's deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from antiphon.errors import DeadlineExceededError
from antiphon.orchestrator.api import OmniRequest
from antiphon.orchestrator.intake import Intake
from antiphon.pipeline.entry import AnyPrompt
from antiphon.pipeline.topology import Stage

_WORKERS = 2  # of their own: nothing else that takes its time keeps a request from beginning


class Preparation:
    """The threads that make prompts; they start with the first."""

    def __init__(self) -> None:
        self._pool = _pool()

    async def prompts(
        self, intake: Intake, request: OmniRequest, path: Sequence[Stage]
    ) -> Sequence[AnyPrompt]:
        """What `Intake.prompts` gives. Raises as it does, and DeadlineExceededError."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(request.deadline_s):
                return await loop.run_in_executor(self._pool, intake.prompts, request, path)
        except TimeoutError:
            raise deadline_passed(request) from None

    def close(self) -> None:
        """What waits is dropped. May be called twice, and prompts be made again."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = _pool()


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_WORKERS, thread_name_prefix="prompts")


def deadline_passed(request: OmniRequest) -> DeadlineExceededError:
    """The error of a request that took longer than it may."""
    return DeadlineExceededError(f"the request took longer than {request.deadline_s:g} s")
