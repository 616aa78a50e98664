"""Work that must not be left half done when its caller is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.orchestrator.tasks import to_the_end


async def test_a_cancelled_caller_waits_for_the_end_of_the_work() -> None:
    go_on = asyncio.Event()
    done: list[str] = []

    async def work() -> None:
        await go_on.wait()
        done.append("work")

    caller = asyncio.create_task(to_the_end(work()))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert done == ["work"]


async def test_what_the_work_raises_is_raised() -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await to_the_end(work())
