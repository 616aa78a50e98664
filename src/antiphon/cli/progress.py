"""What the stages do while they start, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from antiphon.orchestrator.tasks import READY


class StageProgress:
    """A line per stage that goes away when all serve, or plain lines where there is no terminal;
    at the end how long it took.

    Called with (stage, phase), from any thread. Plain lines say when a stage is ready; with `show`
    or `verbose` everything it does. `verbose` is plain lines everywhere, as the stages' logs come
    between them. `show` False says nothing.
    """

    def __init__(
        self,
        show: bool | None,
        *,
        verbose: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._silent = show is False and not verbose
        self._all = verbose or bool(show)
        self._live = sys.stderr.isatty() and not verbose and not self._silent
        self._clock = clock
        self._began = clock()
        self._tasks: dict[str, TaskID] = {}
        self._last: dict[str, str] = {}
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not self._live,
        )

    def __enter__(self) -> Self:
        self._began = self._clock()
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()
        if error is None and not self._silent:
            took = self._clock() - self._began
            print(f"started in {took:.1f} s", file=sys.stderr, flush=True)

    def __call__(self, stage: str, phase: str) -> None:
        text = f"{stage}: {phase}"
        if self._live:
            if stage not in self._tasks:
                self._tasks[stage] = self._bars.add_task(text, total=None)
            self._bars.update(self._tasks[stage], description=text)
        elif self._says(phase) and self._last.get(stage) != phase:
            self._last[stage] = phase
            print(text, file=sys.stderr, flush=True)

    def _says(self, phase: str) -> bool:
        return not self._silent and (self._all or phase.startswith(READY))
