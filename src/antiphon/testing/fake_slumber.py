"""The sleep of a stage without an engine: what it holds back and answers, as a real one does."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from antiphon.errors import ErrorInfo
from antiphon.stage.messages import (
    Acknowledged,
    Command,
    Deliver,
    Event,
    Interrupt,
    Sleep,
    Submit,
    Update,
    Wake,
)

Held = Submit | Deliver | Update | Interrupt
_MEMORY = frozenset({"weights", "kv_cache"})
_DROPS_WEIGHTS = 2


class FakeSlumber:
    """Whether the stage is awake; `take` carries out a command that was held."""

    def __init__(self, say: Callable[[Event], None], take: Callable[[Command], None]) -> None:
        self._say = say
        self._take = take
        self._held: list[Held] = []
        self._bedtimes: list[Sleep] = []  # carried out once nothing runs
        self._level = 0
        self.asleep: frozenset[str] = frozenset()  # memory that has been given back

    @property
    def awake(self) -> bool:
        """False while it sleeps or is about to."""
        return not self.asleep and not self._bedtimes

    def holds_back(self, command: Held) -> bool:
        """Whether the command waits until the stage is awake; then it is kept."""
        runs = isinstance(command, Interrupt) and not self._holds(command.uid)
        if runs or self.awake:
            return False
        self._held.append(command)
        return True

    def drop(self, uids: Iterable[str]) -> list[Interrupt]:
        """Forget what is held of requests that are aborted; the interruptions among it."""
        gone = set(uids)
        dropped = [h for h in self._held if not isinstance(h, Deliver) and h.uid in gone]
        self._held = [held for held in self._held if held not in dropped]
        return [held for held in dropped if isinstance(held, Interrupt)]

    def lie_down(self, command: Sleep) -> None:
        """Hold back from now on; `fall_asleep` once nothing runs. One that sleeps does at once."""
        self._bedtimes.append(command)
        if self.asleep:
            self.fall_asleep(0)

    def fall_asleep(self, bytes_freed: int) -> None:
        """Nothing runs any more: all who have asked are answered. Nothing if nobody has."""
        commands, self._bedtimes = self._bedtimes, []
        if not commands:
            return
        level = max(command.level for command in commands)
        self._level = max(level, self._level) if "weights" in self.asleep else level
        self.asleep = _MEMORY
        for command in commands:
            self._say(Acknowledged(command.token, bytes_freed))

    def wake(self, command: Wake) -> None:
        """Take memory back; what was held starts once all of it is there."""
        wanted = _MEMORY if command.tags is None else frozenset(command.tags)
        error = self._why_not(wanted)
        if error is None:
            early = ErrorInfo("stage", "the stage was woken before it slept")
            bedtimes, self._bedtimes = self._bedtimes, []
            for bedtime in bedtimes:
                self._say(Acknowledged(bedtime.token, 0, early))
            self.asleep -= wanted
        self._say(Acknowledged(command.token, 0, error))
        if self.awake:
            held, self._held = self._held, []
            for waiting in held:
                self._take(waiting)

    def _why_not(self, wanted: frozenset[str]) -> ErrorInfo | None:
        if unknown := sorted(wanted - _MEMORY):
            return ErrorInfo("stage", f"there is no memory {unknown[0]!r} to wake")
        if self._level == _DROPS_WEIGHTS and "weights" in self.asleep - wanted:
            return ErrorInfo("stage", "level 2 dropped the weights: wake 'weights' first")
        return None

    def end(self) -> None:
        """The stage's process has ended."""
        self._held.clear()

    def _holds(self, uid: str) -> bool:
        return any(not isinstance(held, Deliver) and held.uid == uid for held in self._held)
