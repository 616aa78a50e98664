"""Rows of one request on their way from the model to its output adapters.

A step's rows are released once the scheduler has accepted the tokens they belong to. So a position
that was computed ahead of a stop, or again after a preemption, never reaches an adapter twice or at
all; synchronous and asynchronous scheduling give the same rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from antiphon.payload.adapters import StepRows
from antiphon.payload.ref import Layout
from antiphon.worker.device import HostCopy


@dataclass(frozen=True, slots=True)
class CopiedRows:
    """Rows [start, stop) of a packed copy that serves all requests of a step."""

    packed: HostCopy
    start: int
    stop: int

    def wait(self) -> torch.Tensor:
        return self.packed.wait()[self.start : self.stop]


@dataclass(frozen=True, slots=True)
class PendingRows:
    """One step's tensors of the request, still being copied."""

    first: int  # position of the first row
    count: int
    hidden: CopiedRows | None  # [count, hidden]
    side: Mapping[str, tuple[Layout, CopiedRows]]

    @property
    def end(self) -> int:
        """The position behind the last row."""
        return self.first + self.count


class RowLog:
    """Appended by the step, drained by accepted tokens; both in step order, each on one thread."""

    def __init__(
        self, *, wants_hidden: bool = True, side_names: Iterable[str] = (), first: int = 0
    ) -> None:
        self.wants_hidden = wants_hidden
        self.side_names = frozenset(side_names)
        self._arriving: deque[PendingRows] = deque()  # the step's end of the log
        self._pending: list[PendingRows] = []  # in step order; some of it no adapter has seen
        self._next = first  # first position that no adapter has seen
        self._shared_sent: set[str] = set()

    def append(self, rows: PendingRows) -> None:
        """Rows of a step; positions seen before (a replay after preemption) are cut off later."""
        self._arriving.append(rows)

    def confirm(self, num_positions: int) -> list[StepRows]:
        """Rows of positions below `num_positions` that no adapter has seen, in order.

        Of a position that was computed several times the last rows count: what came before may
        belong to a token that was not accepted. Raises AssertionError if a position is missing: a
        step's rows were lost.
        """
        while self._arriving:
            self._pending.append(self._arriving.popleft())
        released: list[StepRows] = []
        while self._next < num_positions and (found := self._newest()) is not None:
            rows, stop = found
            stop = min(stop, num_positions)
            released.append(self._cut(rows, self._next, stop))
            self._next = stop
        self._pending = [rows for rows in self._pending if rows.end > self._next]
        if self._pending and self._next < num_positions:
            raise AssertionError(f"rows of position {self._next} are missing")
        return released

    def check_integrity(self) -> None:
        """Raise AssertionError if rows are kept that every adapter has seen."""
        if any(rows.end <= self._next or rows.count < 1 for rows in self._pending):
            raise AssertionError("rows are kept that nobody needs any more")

    def _newest(self) -> tuple[PendingRows, int] | None:
        """The step that computed the next position last, and up to where its rows are the last."""
        stop = None
        for rows in reversed(self._pending):
            if rows.first <= self._next < rows.end:
                return rows, rows.end if stop is None else min(stop, rows.end)
            if rows.first > self._next:
                stop = rows.first if stop is None else min(stop, rows.first)
        return None

    def _cut(self, rows: PendingRows, start: int, stop: int) -> StepRows:
        part = slice(start - rows.first, stop - rows.first)
        hidden = None if rows.hidden is None else rows.hidden.wait()[part]
        side: dict[str, torch.Tensor] = {}
        for name, (layout, copy) in rows.side.items():
            match layout:
                case Layout.PER_TOKEN:
                    side[name] = copy.wait()[part]
                case Layout.PER_REQUEST:
                    side[name] = copy.wait()
                case Layout.SHARED:
                    if name not in self._shared_sent:
                        self._shared_sent.add(name)
                        side[name] = copy.wait()
        return StepRows(start, hidden, side)
