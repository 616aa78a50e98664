"""How the orchestrator reaches a stage: commands down, events up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from antiphon.errors import AntiphonError
from antiphon.stage.messages import Command, Event

Frames = Sequence[bytes | memoryview]
OnEvent = Callable[[str, Event, Frames], None]  # (stage, event, raw frames beside it)
OnGone = Callable[[str, AntiphonError], None]  # (stage, why); called once


class StageClient(ABC):
    """One stage, wherever it runs. Callbacks come from another thread."""

    @property
    def pid(self) -> int | None:
        """Process id of the stage, None if it runs in the caller's process."""
        return None

    @abstractmethod
    def send(self, command: Command) -> None:
        """Queue a command; never blocks, and is ignored once the stage is gone."""

    @abstractmethod
    def stop(self, timeout_s: float) -> None:
        """Ask the stage to end and make sure that it has; may be called twice. Blocks."""


class WatchedClient(StageClient):
    """A stage that answers `Ping` whatever it does, and that can be ended from outside."""

    @abstractmethod
    def kill(self, why: AntiphonError) -> None:
        """End the stage at once, as if it had died; its end is reported with `why`."""
