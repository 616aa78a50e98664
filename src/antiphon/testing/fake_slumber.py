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
        self._bedtime: Sleep | None = None
        self._level = 0
        self.asleep: frozenset[str] = frozenset()  # memory that has been given back

    @property
    def awake(self) -> bool:
        """False while it sleeps or is about to."""
        return not self.asleep and self._bedtime is None

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
        """Hold back from now on; `fall_asleep` once nothing runs."""
        if self.awake:
            self._bedtime = command
        else:
            self._say(Acknowledged(command.token))

    def fall_asleep(self, bytes_freed: int) -> None:
        """Nothing runs any more. Ignored unless it is about to sleep."""
        command, self._bedtime = self._bedtime, None
        if command is not None:
            self.asleep, self._level = _MEMORY, command.level
            self._say(Acknowledged(command.token, bytes_freed))

    def wake(self, command: Wake) -> None:
        """Take memory back; what was held starts once all of it is there."""
        if self._bedtime is not None:
            early = ErrorInfo("stage", "the stage was woken before it slept")
            self._say(Acknowledged(self._bedtime.token, 0, early))
            self._bedtime = None
        wanted = _MEMORY if command.tags is None else frozenset(command.tags)
        error = None
        if unknown := sorted(wanted - _MEMORY):
            error = ErrorInfo("stage", f"there is no memory {unknown[0]!r} to wake")
        elif self._level == _DROPS_WEIGHTS and "weights" in self.asleep - wanted:
            error = ErrorInfo("stage", "level 2 dropped the weights: wake 'weights' first")
        else:
            self.asleep -= wanted
        self._say(Acknowledged(command.token, 0, error))
        if self.awake:
            held, self._held = self._held, []
            for waiting in held:
                self._take(waiting)

    def end(self) -> None:
        """The stage's process has ended."""
        self._held.clear()

    def _holds(self, uid: str) -> bool:
        return any(not isinstance(held, Deliver) and held.uid == uid for held in self._held)
