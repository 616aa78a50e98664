"""Ctrl-C and SIGTERM: both cancel what runs, wait for its clean-up, and have their exit codes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

STOPPING = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """A signal asked the command to stop. Not an Exception, so that nothing mistakes it for one."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


def _raise(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)


@contextmanager
def interruptible() -> Iterator[None]:
    """Both signals raise `Interrupted` inside."""
    before = [(number, signal.signal(number, _raise)) for number in STOPPING]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `main()` in an event loop.

    A signal cancels it; further ones are ignored while it cleans up. Raises Interrupted then.
    """
    received: list[int] = []

    async def supervised() -> T:
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        assert task is not None  # noqa: S101 - a coroutine under asyncio.run has a task

        def stop(number: int) -> None:
            if not received:
                received.append(number)
                task.cancel()

        for number in STOPPING:
            loop.add_signal_handler(number, stop, number)
        return await main()

    try:
        result = asyncio.run(supervised())
    except asyncio.CancelledError:
        if not received:
            raise
        raise Interrupted(received[0]) from None
    finally:
        for number in STOPPING:  # closing the loop has set the system's defaults
            signal.signal(number, _raise)
    if received:
        raise Interrupted(received[0])
    return result
