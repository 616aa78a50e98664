"""Which replica of each stage serves a request; chosen once, when it is submitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from antiphon.orchestrator.dispatch import Dispatch
from antiphon.orchestrator.recording import Observers
from antiphon.orchestrator.replica import Replica
from antiphon.orchestrator.timers import Later
from antiphon.payload.ref import Ref
from antiphon.stage.messages import Command


class Route:
    """What a request reaches its stages through, by their names."""

    def __init__(self, dispatch: Dispatch, replicas: Mapping[str, Replica]) -> None:
        self._dispatch = dispatch
        self.replicas = replicas
        self.severed = False  # one of them has ended since

    @property
    def stages(self) -> tuple[str, ...]:
        """Their names, in the path's order."""
        return tuple(self.replicas)

    @property
    def clock(self) -> Callable[[], float]:
        return self._dispatch.clock

    @property
    def later(self) -> Later:
        return self._dispatch.later

    @property
    def observers(self) -> Observers:
        return self._dispatch.observers

    def send(self, stage: str, command: Command) -> None:
        """Queue a command; ignored once the replica is gone."""
        self._dispatch.send(self.replicas[stage], command)

    def deliver(
        self,
        producer: str,
        consumer: str,
        uids: tuple[str, ...],
        ref: Ref,
        on_used: Callable[[], None] = lambda: None,
    ) -> None:
        """As `Deliveries.deliver`."""
        replicas = self.replicas
        deliveries = self._dispatch.deliveries
        deliveries.deliver(replicas[producer], replicas[consumer], uids, ref, on_used)

    def ask(
        self, commands: Mapping[str, Callable[[int], Command]], done: Callable[[], None]
    ) -> None:
        """As `Acknowledgements.ask`."""
        placed = {self.replicas[stage]: command for stage, command in commands.items()}
        self._dispatch.acknowledgements.ask(placed, done)
