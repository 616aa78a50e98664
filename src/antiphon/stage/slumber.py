"""A stage that sleeps gives its memory back; what arrives meanwhile waits until it is awake.

Running requests finish first, and KV caches that are being handed over leave first. Requests that
wait in mid-decode and sessions that rest cannot: their blocks are given up, and computed again when
they go on. So no stage waits for another one to fall asleep, in whatever order those of a pipeline
do: what lacks a chunk of a stage that sleeps, or room at one, waits like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from antiphon.errors import AntiphonError, ErrorInfo, InvalidRequestError, StageError
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
_LEVELS = (1, DROPS_WEIGHTS)
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
        self._bedtimes: list[Sleep] = []  # carried out when the last running request has ended

    @property
    def awake(self) -> bool:
        """False while the stage sleeps or is about to."""
        return not self._asleep and not self._bedtimes

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
        kept: list[Held] = []
        dropped: list[Held] = []
        for held in self._held:
            if isinstance(held, Deliver):
                theirs = [item for item in held.items if item[0] in gone]
                others = [item for item in held.items if item[0] not in gone]
                dropped += [Deliver(theirs)] if theirs else []
                kept += [Deliver(others)] if others else []
            else:
                (dropped if held.uid in gone else kept).append(held)
        self._held = kept
        return dropped

    def check_integrity(self) -> None:
        """Raise AssertionError if an awake stage holds commands back, or one that sleeps runs."""
        if self.awake and self._held:
            raise AssertionError("commands are held though the stage is awake")
        if self._asleep and self._engine.scheduler.running:
            raise AssertionError("a request runs in a stage that sleeps")

    def sleep(self, command: Sleep) -> None:
        """Sleep now, or as soon as nothing runs; deeper, if it sleeps already."""
        if command.level not in _LEVELS:
            wrong = InvalidRequestError(f"there is no sleep level {command.level}; use 1 or 2")
            self._acknowledge(command, 0, wrong.to_wire())
            return
        if self.awake:
            # Chunks are held from here on: no wait may run out.
            self._engine.scheduler.coordinator.gate.pause()
        self._bedtimes.append(command)
        self.settle()

    def settle(self) -> None:
        """After a step: sleep if the stage is about to, nothing runs any more, and no worker copies
        what lies in blocks. Whoever has asked for it meanwhile is answered by the one sleep.
        """
        if not self._bedtimes or (not self._asleep and self._busy):
            return
        commands, self._bedtimes = self._bedtimes, []
        freed, error = self._lie_down(max(command.level for command in commands))
        for command in commands:
            self._acknowledge(command, freed, error)
        self._go_on()

    @property
    def _busy(self) -> bool:
        return self._engine.has_work or self._engine.scheduler.handoffs.holding

    def _lie_down(self, level: int) -> tuple[int, ErrorInfo | None]:
        """Give back what has not been given back yet; bytes of device memory."""
        if self._asleep == _MEMORY and level <= self._level:
            return 0, None
        if not self._asleep:
            self._engine.pause(True)  # room on an edge, say, must not start anything now
            self._engine.give_up_blocks()
        deeper = "weights" in self._asleep and level > self._level
        if deeper:  # their copy is to go, and upstream drops only what is there
            _, error = self._attempt("stage_wake", ["weights"], False)
            if error is not None:
                return 0, error
            self._asleep -= {"weights"}
        freed, error = self._attempt("stage_sleep", level)
        if error is None:
            self._level = max(level, self._level) if "weights" in self._asleep else level
            self._asleep = _MEMORY
        return 0 if deeper else sum(freed), error

    def wake(self, command: Wake) -> None:
        """Take memory back; what was held starts once all of it is there."""
        wanted = _MEMORY if command.tags is None else frozenset(command.tags)
        error = self._why_not(wanted)
        if error is None:
            self._stay_awake()
            tags = sorted(wanted & self._asleep)
            dropped = self._level == DROPS_WEIGHTS and "weights" in tags
            if tags:
                _, error = self._attempt("stage_wake", tags, dropped)
        if error is None:
            self._asleep -= wanted
        self._acknowledge(command, 0, error)
        self._go_on()

    def _why_not(self, wanted: frozenset[str]) -> ErrorInfo | None:
        """What is wrong with waking this."""
        if unknown := sorted(wanted - _MEMORY):
            known = " and ".join(sorted(_MEMORY))
            return InvalidRequestError(
                f"there is no memory {unknown[0]!r} to wake; there are {known}"
            ).to_wire()
        dropped = self._level == DROPS_WEIGHTS and "weights" in self._asleep
        if dropped and wanted and "weights" not in wanted:
            return InvalidRequestError(
                "level 2 dropped the weights: wake 'weights' first, or all"
            ).to_wire()
        return None

    def _stay_awake(self) -> None:
        """Nobody sleeps who was about to."""
        commands, self._bedtimes = self._bedtimes, []
        for command in commands:
            early = StageError("the stage was woken before it slept")
            self._acknowledge(command, 0, early.to_wire())

    def _go_on(self) -> None:
        if self.awake:
            self._engine.pause(False)
            self._engine.scheduler.coordinator.gate.resume()
            held, self._held = self._held, []
            for command in held:
                self._start(command)

    def _attempt(self, method: str, *args: object) -> tuple[list[Any], ErrorInfo | None]:
        """Call all workers. What they raise does not end the stage: it may be put right."""
        try:
            return self._call(method, *args), None
        except AntiphonError as error:
            return [], error.to_wire()

    def _call(self, method: str, *args: object) -> list[Any]:
        try:
            return self._engine.call_workers(method, *args)
        except AntiphonError:
            raise
        except Exception as error:  # upstream's memory and loaders are as foreign as a model
            message = " ".join(str(error).split()) or "no message"
            raise StageError(f"{type(error).__name__}: {message}") from error

    def _acknowledge(self, command: Sleep | Wake, freed: int, error: ErrorInfo | None) -> None:
        self._send(Acknowledged(command.token, freed, error))
