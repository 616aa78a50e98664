"""A stage that sleeps gives its memory back; what arrives meanwhile waits until it is awake.

Running requests finish first, and KV caches that are being handed over leave first. Requests that
wait in mid-decode and sessions that rest cannot: their blocks are given up, and computed again when
they go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from antiphon.errors import ErrorInfo
from antiphon.stage.engine import StageEngine
from antiphon.stage.messages import (
    Acknowledged,
    Deliver,
    Event,
    Interrupt,
    Sleep,
    Submit,
    Update,
    Wake,
)

Held = Submit | Deliver | Update | Interrupt

DROPS_WEIGHTS = 2  # vLLM's sleep level without a copy of the weights
_MEMORY = frozenset({"weights", "kv_cache"})  # vLLM's names of what a worker gives back


class Slumber:
    """Whether the stage is awake; `start` carries out a command that was held."""

    def __init__(
        self, engine: StageEngine, send: Callable[[Event], None], start: Callable[[Held], None]
    ) -> None:
        self._engine = engine
        self._send = send
        self._start = start
        self._held: list[Held] = []
        self._asleep: frozenset[str] = frozenset()  # memory that has been given back
        self._level = 0  # of the sleep; 2 has dropped the weights
        self._bedtime: Sleep | None = None  # carried out when the last running request has ended

    @property
    def awake(self) -> bool:
        """False while the stage sleeps or is about to."""
        return not self._asleep and self._bedtime is None

    @property
    def level(self) -> int:
        """How deep the stage sleeps: 1 with a copy of the weights, 2 without; 0 if it does not."""
        return self._level if self._asleep else 0

    def hold(self, command: Held) -> None:
        """Keep a command until the stage is awake."""
        self._held.append(command)

    def holds(self, uid: str) -> bool:
        """Whether a command of this request waits."""
        return any(not isinstance(held, Deliver) and held.uid == uid for held in self._held)

    def drop(self, uids: Iterable[str]) -> list[Held]:
        """Forget what is held of requests that are aborted, and say what it was."""
        gone = set(uids)
        dropped: list[Held] = [
            held for held in self._held if not isinstance(held, Deliver) and held.uid in gone
        ]
        self._held = [held for held in self._held if held not in dropped]
        return dropped

    def sleep(self, command: Sleep) -> None:
        """Sleep now, or as soon as nothing runs."""
        if not self.awake:
            self._acknowledge(command, 0, None)  # it sleeps, or is about to
            return
        self._engine.scheduler.coordinator.gate.pause()  # chunks are held: no wait may run out
        self._bedtime = command
        self.settle()

    def settle(self) -> None:
        """After a step: sleep if the stage is about to, nothing runs any more, and no worker copies
        what lies in blocks.
        """
        if self._bedtime is None or self._engine.has_work:
            return
        if self._engine.scheduler.handoffs.holding:
            return
        command, self._bedtime = self._bedtime, None
        self._engine.pause(True)  # room on an edge, say, must not start anything now
        self._engine.give_up_blocks()
        freed, error = self._attempt(
            lambda: self._engine.call_workers("stage_sleep", command.level)
        )
        if error is None:
            self._asleep, self._level = _MEMORY, command.level
        self._acknowledge(command, sum(freed), error)
        self._go_on()

    def wake(self, command: Wake) -> None:
        """Take memory back; what was held starts once all of it is there."""
        if self._bedtime is not None:
            early = ErrorInfo("stage", "the stage was woken before it slept")
            self._acknowledge(self._bedtime, 0, early)
            self._bedtime = None
        wanted = _MEMORY if command.tags is None else frozenset(command.tags)
        tags = sorted(wanted & self._asleep)
        error = None
        dropped = self._level == DROPS_WEIGHTS and "weights" in self._asleep
        if unknown := sorted(wanted - _MEMORY):
            error = ErrorInfo("stage", f"there is no memory {unknown[0]!r} to wake")
        elif dropped and "weights" not in wanted:
            error = ErrorInfo("stage", "level 2 dropped the weights: wake 'weights' first")
        elif tags:
            _, error = self._attempt(lambda: self._engine.call_workers("stage_wake", tags, dropped))
        if error is None:
            self._asleep -= wanted
        self._acknowledge(command, 0, error)
        self._go_on()

    def _go_on(self) -> None:
        if self.awake:
            self._engine.pause(False)
            self._engine.scheduler.coordinator.gate.resume()
            held, self._held = self._held, []
            for command in held:
                self._start(command)

    def _attempt(self, call: Callable[[], list[Any]]) -> tuple[list[Any], ErrorInfo | None]:
        """A call to the workers that may fail without ending the stage."""
        try:
            return call(), None
        except (RuntimeError, ValueError, AssertionError) as failure:
            return [], ErrorInfo("stage", f"{type(failure).__name__}: {failure}")

    def _acknowledge(self, command: Sleep | Wake, freed: int, error: ErrorInfo | None) -> None:
        self._send(Acknowledged(command.token, freed, error))
