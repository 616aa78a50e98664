"""What the stages do while they start, on stderr."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class StageProgress:
    """A line per stage that goes away when all serve, or plain lines where there is no terminal.

    Called with (stage, phase), from any thread. `show` None is: on a terminal only, so that an
    error stays the one line on stderr of a script. `verbose` is plain lines everywhere, as the
    stages' logs come between them.
    """

    def __init__(self, show: bool | None, *, verbose: bool = False) -> None:
        terminal = sys.stderr.isatty() and not verbose
        self._lines = verbose or (bool(show) and not terminal)
        self._live = terminal and show is not False
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
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def __call__(self, stage: str, phase: str) -> None:
        text = f"{stage}: {phase}"
        if self._live:
            if stage not in self._tasks:
                self._tasks[stage] = self._bars.add_task(text, total=None)
            self._bars.update(self._tasks[stage], description=text)
        elif self._lines and self._last.get(stage) != phase:
            self._last[stage] = phase
            print(text, file=sys.stderr, flush=True)
