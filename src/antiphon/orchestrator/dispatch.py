"""The orchestrator's side of its stages: commands out, chunks under way, answers expected."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from antiphon.errors import AntiphonError, StageDiedError
from antiphon.orchestrator.acknowledgements import Acknowledgements
from antiphon.orchestrator.clients import StageClient
from antiphon.orchestrator.deliveries import Deliveries
from antiphon.orchestrator.recording import Observers
from antiphon.orchestrator.replica import Replica
from antiphon.orchestrator.timers import Later, on_loop
from antiphon.stage.messages import Command


class Dispatch:
    """What live requests and sessions reach their stages through. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, later: Later = on_loop) -> None:
        self.clock = clock
        self.later = later
        self._clients: Mapping[Replica, StageClient] = {}
        self._replicas: dict[str, list[Replica]] = {}
        self._gone: dict[Replica, AntiphonError] = {}
        self.draining: set[Replica] = set()  # they get no requests
        self.live: Counter[Replica] = Counter()  # requests that each has
        self._chosen: dict[Replica, int] = {}  # when each was chosen last
        self._choices = 0
        self.observers = Observers()
        self.deliveries = Deliveries(self.send, self._gone)
        self.acknowledgements = Acknowledgements(self.send, self._gone)

    def attach(self, clients: Mapping[Replica, StageClient]) -> None:
        """The stages, once they have been started; a replica's client may become another one."""
        self._clients = clients
        self._replicas = {}
        for replica in sorted(clients):
            self._replicas.setdefault(replica.stage, []).append(replica)

    def send(self, replica: Replica, command: Command) -> None:
        """Queue a command; ignored while the replica is gone."""
        if replica not in self._gone:
            self._clients[replica].send(command)

    def choose(self, stage: str) -> Replica:
        """The replica that a new request goes to: the one with the fewest, in turns.

        Raises StageDiedError if none takes any.
        """
        serving = [r for r in self._replicas[stage] if self._takes(r)]
        if not serving:
            self.require(stage)
        return min(serving, key=lambda r: (self.live[r], self._chosen.get(r, -1)))

    def bind(self, replicas: Iterable[Replica]) -> None:
        """A request has been given to these."""
        for replica in replicas:
            self.live[replica] += 1
            self._choices += 1
            self._chosen[replica] = self._choices

    def unbind(self, replicas: Iterable[Replica]) -> None:
        """It is over."""
        self.live.subtract(replicas)

    def _takes(self, replica: Replica) -> bool:
        return replica not in self._gone and replica not in self.draining

    @property
    def gone(self) -> Mapping[Replica, AntiphonError]:
        """The replicas whose processes have ended, and why."""
        return self._gone

    def require(self, stage: str) -> None:
        """Raise StageDiedError if no replica of the stage takes requests."""
        replicas = self._replicas.get(stage, [Replica(stage)])
        if any(self._takes(replica) for replica in replicas):
            return
        why = next((self._gone[r] for r in replicas if r in self._gone), None)
        if why is None:
            raise StageDiedError(f"stage '{stage}' takes no requests: it drains")
        raise StageDiedError(f"stage '{stage}' is not running: {why}")

    def lost(self, replica: Replica, why: AntiphonError) -> None:
        """A replica's process has ended: nothing is sent to it until it has `joined`."""
        self._gone[replica] = why
        self.deliveries.lost(replica)

    def joined(self, replica: Replica) -> None:
        """It serves again, and knows of nothing that was before."""
        self._gone.pop(replica, None)
