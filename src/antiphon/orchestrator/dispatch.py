"""The orchestrator's side of its stages: commands out, chunks under way, answers expected."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from antiphon.errors import AntiphonError, StageDiedError
from antiphon.orchestrator.acknowledgements import Acknowledgements
from antiphon.orchestrator.clients import StageClient
from antiphon.orchestrator.deliveries import Deliveries
from antiphon.orchestrator.recording import Observers
from antiphon.stage.messages import Command


class Dispatch:
    """What live requests and sessions reach their stages through. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._clients: Mapping[str, StageClient] = {}
        self._gone: dict[str, AntiphonError] = {}
        self.observers = Observers()
        self.deliveries = Deliveries(self.send, self._gone)
        self.acknowledgements = Acknowledgements(self.send, self._gone)

    def attach(self, clients: Mapping[str, StageClient]) -> None:
        """The stages, once they have been started."""
        self._clients = clients

    def send(self, stage: str, command: Command) -> None:
        """Queue a command; ignored once the stage is gone."""
        if stage not in self._gone:
            self._clients[stage].send(command)

    @property
    def gone(self) -> Mapping[str, AntiphonError]:
        """The stages whose processes have ended, and why."""
        return self._gone

    def require(self, stage: str) -> None:
        """Raise StageDiedError if the stage is gone."""
        if (why := self._gone.get(stage)) is not None:
            raise StageDiedError(f"stage '{stage}' is not running: {why}")

    def lost(self, stage: str, why: AntiphonError) -> None:
        """A stage's process has ended: nothing is sent to it any more."""
        self._gone[stage] = why
        self.deliveries.lost(stage)
