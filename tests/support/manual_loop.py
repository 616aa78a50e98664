"""An event loop by hand: time is a manual clock's, and threads work when they are let."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from antiphon.testing.clock import ManualClock

_LONGEST_STEP_S = 0.5  # of time that passes at once: what the loop itself waits for is due by then


class ManualLoop(asyncio.SelectorEventLoop):
    """Runs on one thread; work that is meant for others is done by `work`, in the order it came.

    `faults` are the exceptions that no one took.
    """

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.faults: list[BaseException | str] = []
        self.holding = False  # threads get no further
        self._jobs: deque[tuple[asyncio.Future[Any], Callable[[], Any]]] = deque()
        self._busy = False
        super().__init__()
        self.set_exception_handler(self._note)

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.faults.append(context.get("exception") or context["message"])

    def time(self) -> float:
        return self.clock()

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        self._busy = True
        return super().call_soon(callback, *args, context=context)

    def call_soon_threadsafe(
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        self._jobs.append((future, lambda: func(*args)))
        if not self.holding:
            self.call_soon(self.work)
        return future

    def work(self) -> None:
        """Everything that threads have to do."""
        while self._jobs:
            future, job = self._jobs.popleft()
            if future.cancelled():
                continue
            try:
                future.set_result(job())
            except Exception as error:  # noqa: BLE001  whoever awaits it gets it
                future.set_exception(error)

    def settle(self) -> None:
        """Run until nothing is ready."""
        self._busy = True
        while self._busy:
            self._busy = False
            super().call_soon(self.stop)
            self.run_forever()

    def do(self, call: Callable[[], object]) -> None:
        """Make a call on the loop, and let everything happen that follows from it."""
        self.call_soon(call)
        self.settle()

    def pass_time(self, seconds: float) -> None:
        """Time goes on from one due call to the next, and what follows from each happens."""
        end = self.clock() + seconds
        while (left := end - self.clock()) > 0:
            due = self.clock.next_due
            until_due = left if due is None else max(0.0, due - self.clock())
            step = min(left, until_due, _LONGEST_STEP_S)
            self.do(lambda step=step: self.clock.advance(step))  # type: ignore[misc]
