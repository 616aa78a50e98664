"""Calls from plain threads: what they raise, and that none is left waiting when the loop ends."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from antiphon.errors import ShutdownError
from antiphon.orchestrator.loop_thread import LoopThread


async def nothing() -> None:
    pass


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close(nothing())


def test_a_call_gives_what_its_coroutine_returns_or_raises(loop: LoopThread) -> None:
    async def seven() -> int:
        return 7

    async def wrong() -> None:
        raise ValueError("no")

    assert loop.call(seven()) == 7
    with pytest.raises(ValueError, match="no"):
        loop.call(wrong())


def test_a_call_after_the_end_is_refused(loop: LoopThread) -> None:
    loop.close(nothing())
    loop.close(nothing())  # harmless
    with pytest.raises(ShutdownError, match="closed"):
        loop.call(nothing())


def test_closing_ends_the_calls_of_other_threads(loop: LoopThread) -> None:
    started = threading.Event()

    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(loop.call, endless())
        started.wait()
        loop.close(nothing())
        with pytest.raises(ShutdownError, match="while the call ran"):
            call.result()


def test_ctrl_c_is_raised_when_the_call_has_cleaned_up(loop: LoopThread) -> None:
    cleaned: list[str] = []

    async def interrupted() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("up")

    with pytest.raises(KeyboardInterrupt):
        loop.call(interrupted())
    assert cleaned == ["up"]
