"""An event loop on a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from antiphon.errors import ShutdownError

T = TypeVar("T")


class LoopThread:
    """Calls may come from any thread but its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="antiphon")
        self._thread.start()
        self._closing = threading.Lock()
        self._lock = threading.Lock()  # of `_closed`: nothing is given to a loop that has stopped
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run `coroutine` to its end and give what it returns or raises.

        An exception that a signal raises in the waiting thread, as Ctrl-C does, cancels it and is
        raised when it has cleaned up. Raises ShutdownError once the loop has been closed.
        """
        return self._run(coroutine, last=False)

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Run `last`, end every call that is still running, and stop. May be called twice."""
        with self._closing:
            if self._loop.is_closed():
                last.close()
                return
            self._run(self._finish(last), last=True)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _finish(self, last: Coroutine[Any, Any, None]) -> None:
        await last
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()

    def _run(self, coroutine: Coroutine[Any, Any, T], *, last: bool) -> T:
        call = _Call(self._loop, coroutine)
        try:
            with self._lock:
                if self._closed and not last:
                    call.drop("the pipeline has been closed; make a new one")
                else:
                    self._closed = last
                    self._loop.call_soon_threadsafe(call.begin)
            return call.outcome.result()
        except BaseException:
            if not call.outcome.done():  # a signal, at whatever point: the call may be running
                self._loop.call_soon_threadsafe(call.cancel)
                concurrent.futures.wait([call.outcome])
            raise


class _Call(Generic[T]):
    """One coroutine on its way through the loop. Methods run on the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> None:
        self.outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._loop = loop
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None

    def drop(self, reason: str) -> None:
        """It will not run. For any thread, before `begin`."""
        self._coroutine.close()
        self.outcome.set_exception(ShutdownError(reason))

    def begin(self) -> None:
        self._task = self._loop.create_task(self._coroutine)
        self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        if self._task is None:
            self.drop("interrupted before it began")
        else:
            self._task.cancel()

    def _end(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            reason = ShutdownError("the pipeline was closed while the call ran")
            self.outcome.set_exception(reason)
        elif (error := task.exception()) is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(task.result())
