"""Which running copy of a stage is meant, and how it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple


class Replica(NamedTuple):
    """The address of one copy; it outlives the process that serves there."""

    stage: str
    number: int = 0

    def __str__(self) -> str:
        """The stage's name; behind it the number of any but the first."""
        return f"{self.stage}/{self.number}" if self.number else self.stage


Word = Literal["starting", "ready", "asleep", "draining", "silent", "restarting", "gone"]


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """How a replica is.

    silent: it has not answered for a while, and is ended if that goes on. restarting: its process
    has ended, for `why`, and another one starts, in `restart_in_s` or now. gone: it stays down.
    """

    id: int
    state: Word
    why: str | None = None
    restarts: int = 0
    restart_in_s: float | None = None

    @property
    def serves(self) -> bool:
        """Whether it takes requests, or has some that it goes on with."""
        return self.state in ("ready", "asleep", "draining", "silent")


@dataclass(frozen=True, slots=True)
class StageState:
    """How a stage is: as its replicas are if that is one word, else degraded.

    `why` is of one that does not serve.
    """

    replicas: tuple[ReplicaState, ...]

    @property
    def state(
        self,
    ) -> Word | Literal["degraded"]:
        states = {replica.state for replica in self.replicas}
        if len(states) == 1:
            return self.replicas[0].state
        if any(replica.serves for replica in self.replicas):
            return "degraded"
        return "restarting"

    @property
    def serves(self) -> bool:
        """Whether a request that needs it can be answered."""
        return any(replica.state in ("ready", "asleep", "silent") for replica in self.replicas)

    @property
    def why(self) -> str | None:
        return next((replica.why for replica in self.replicas if replica.why is not None), None)
