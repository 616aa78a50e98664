"""What lies between a stage without an engine and who drives it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from antiphon.orchestrator.clients import OnEvent
from antiphon.stage.messages import Command, Event

Frames = Sequence[bytes | memoryview]


class FakeWire:
    """Passes commands to `take` and events to `on_event`, until the stage is gone.

    While its process is frozen both wait here, as they do in a socket.
    """

    def __init__(self, name: str, on_event: OnEvent, take: Callable[[Command], None]) -> None:
        self._name = name
        self._on_event = on_event
        self._take = take
        self._frozen = False
        self._unsaid: list[tuple[Event, Frames]] = []
        self._unread: list[Command] = []
        self.gone = False

    @property
    def frozen(self) -> bool:
        return self._frozen

    def freeze(self) -> None:
        """Pass nothing on."""
        self._frozen = True

    def thaw(self) -> None:
        """Pass on what has waited."""
        self._frozen = False
        unsaid, self._unsaid = self._unsaid, []
        for event, frames in unsaid:
            self.say(event, frames)
        unread, self._unread = self._unread, []
        for command in unread:
            self.hear(command)

    def say(self, event: Event, frames: Frames = ()) -> None:
        """From the stage."""
        if self.gone:
            return
        if self._frozen:
            self._unsaid.append((event, frames))
        else:
            self._on_event(self._name, event, frames)

    def hear(self, command: Command) -> None:
        """To the stage."""
        if self.gone:
            return
        if self._frozen:
            self._unread.append(command)
        else:
            self._take(command)

    def cut(self) -> None:
        """The process has ended; nothing is passed on any more."""
        self.gone = True
        self._unsaid.clear()
        self._unread.clear()
