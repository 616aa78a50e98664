"""What has arrived for one consuming request, and what of it has been used up.

An `ar` request is given a prompt once and then, on a stream edge, one row for each token that it
feeds back: output token r is computed with row r. A generation request is given one prompt per
chunk. A chunk's key is used up when nothing of it is needed by a later step any more; that is when
its producer may send another.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from antiphon.core.prompt_plan import PromptPlan

Key = str | None  # None: a chunk that was nothing but the end


@dataclass(slots=True)
class Inflow:
    """One request's input. Rows are counted, never held: they stay in the worker."""

    edge: str
    stream: bool
    rows: int = 0  # decode rows that the worker holds
    needed: int = 0  # rows that the next step needs, as last asked
    ended: bool = False  # the last chunk has been answered
    planned: bool = False  # the prompt (generation: the first one) is known
    keys: set[str] = field(default_factory=set)  # accepted and not used up
    plans: deque[tuple[PromptPlan, Key]] = field(default_factory=deque)  # generation: to be run
    running: Key = None  # generation: the chunk in its forward; ar: the prompt's, until scheduled
    _row_ends: deque[tuple[int, str]] = field(default_factory=deque)  # (rows with this chunk, key)

    def accepted(self, keys: list[str]) -> None:
        """These chunks are being fetched, or wait for their turn."""
        self.keys.update(keys)

    def answered(self, key: Key, rows: int, *, last: bool, kept: bool) -> list[str]:
        """The worker has taken a chunk in; keys that are used up by it.

        `kept`: the chunk became a prompt. A chunk that gave neither prompt nor rows has been
        absorbed by the adapter.
        """
        self.rows += rows
        self.ended |= last
        if rows and key is not None:
            self._row_ends.append((self.rows, key))
        return [] if kept or rows else self._used([key])

    @property
    def starves(self) -> bool:
        """Whether the next step lacks a row; past the end rows are padded, and none is lacking."""
        return self.needed > self.rows and not self.ended

    def needs(self, rows: int) -> list[str]:
        """The next step needs `rows` rows in all; keys that earlier steps have used up."""
        self.needed = rows
        used = []
        while self._row_ends and self._row_ends[0][0] < rows:
            used.append(self._row_ends.popleft()[1])
        return self._used(used)

    def scheduled(self) -> list[str]:
        """An ar request's prompt is in a step: its chunk is used up unless it brought rows too."""
        key, self.running = self.running, None
        brought_rows = any(key == of_rows for _, of_rows in self._row_ends)
        return [] if brought_rows else self._used([key])

    def next_plan(self) -> PromptPlan | None:
        """Generation: the next chunk to run, which is running from here on."""
        if not self.plans:
            return None
        plan, self.running = self.plans.popleft()
        return plan

    def ran(self) -> list[str]:
        """Generation: the running chunk has brought its output."""
        key, self.running = self.running, None
        return self._used([key])

    def check_integrity(self) -> None:
        """Raise AssertionError if what is still to be used is not outstanding, or rows are lost."""
        to_run = {key for _, key in self.plans} | {self.running}
        if not to_run - {None} <= self.keys:
            raise AssertionError("a chunk is to be run that counts as used up")
        ends = [rows for rows, _ in self._row_ends]
        if ends != sorted(ends) or (ends and ends[-1] > self.rows):
            raise AssertionError("rows of chunks are miscounted")

    def close(self) -> list[str]:
        """The request is over: everything that was accepted counts as used."""
        keys, self.keys = list(self.keys), set()
        return keys

    def _used(self, keys: list[Key] | list[str]) -> list[str]:
        """Those that were outstanding; each counts once."""
        used = [key for key in keys if key is not None and key in self.keys]
        self.keys.difference_update(used)
        return used
