"""How far a load is, on stderr: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from antiphon.bench.serve_answer import Answer, Ending
from antiphon.bench.serve_load import Watch

_EVERY_S = 10.0


class LoadProgress:
    """Entered for the time of a load, which tells `watch`; `total` None is a load by time."""

    def __init__(self, total: int | None) -> None:
        self._counts = dict.fromkeys(Ending, 0)
        self._running = 0
        self._said_s = time.monotonic()
        self._live = sys.stderr.isatty()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not self._live,
        )
        self._task = self._bar.add_task("", total=total)
        self.watch = Watch(self._sent, self._ended)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def _sent(self) -> None:
        self._running += 1

    def _ended(self, answer: Answer) -> None:
        self._running -= 1
        self._counts[answer.ending] += 1
        if self._live:
            self._bar.update(self._task, advance=1, description=self._text())
        elif time.monotonic() - self._said_s >= _EVERY_S:
            self._said_s = time.monotonic()
            print(self._text(), file=sys.stderr, flush=True)

    def _text(self) -> str:
        told = [f"{count} {ending}" for ending, count in self._counts.items() if count]
        return ", ".join([f"{self._running} under way", *told])
