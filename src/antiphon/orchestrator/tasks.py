"""Awaiting work that must not be left half done."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from antiphon.errors import ShutdownError

T = TypeVar("T")

Progress = Callable[[str, str], None]  # (stage, what it is doing)
READY = "ready after"  # begins what is said of a stage last, once it serves


async def in_thread(work: Callable[[Progress], T], on_progress: Progress) -> T:
    """Run `work` in a thread; a cancellation ends it at its next sign of progress."""
    cancelled = threading.Event()

    def progress(stage: str, phase: str) -> None:
        if cancelled.is_set():
            raise ShutdownError("the pipeline was closed while its models were made ready")
        on_progress(stage, phase)

    thread = asyncio.ensure_future(asyncio.to_thread(work, progress))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        cancelled.set()
        await asyncio.wait([thread])
        if not thread.cancelled():
            thread.exception()  # seen: the cancellation is what the caller gets
        raise


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end; a cancellation that comes meanwhile takes effect after it."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # seen: the cancellation is what the caller gets
        raise
