"""What a row of the fault matrix says."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from antiphon.errors import AntiphonError


class Target(enum.StrEnum):
    """What the fault hits."""

    STAGE = "a stage's process"
    WORKER = "a worker's process"
    SERVER = "the server's process"
    START = "the start of a stage"
    MODEL = "the model"
    ADAPTER = "an adapter"
    CONNECTOR = "the connector"
    MACHINE = "memory, disk, clock"
    CLIENT = "a client"
    CONTROL = "a message between two stages"


class Health(NamedTuple):
    """What `/health` says: its word, and the HTTP status."""

    status: str
    code: int

    def __str__(self) -> str:
        return f"{self.status}, {self.code}"


class Level(enum.StrEnum):
    """How the fault is provoked."""

    WIRE = "processes without engines"  # the real wire, router, supervision and server
    ENGINE = "real engines"  # of tiny models, in the test's process or in their own
    PARTS = "parts"  # connector, cache folder, watch: no engine is needed
    VOICE = "the voice pipeline"  # slow; real models in processes, as they are served


OK = Health("ok", 200)
SILENT = Health("degraded", 200)  # nobody has been lost yet, or another replica serves
DEGRADED = Health("degraded", 503)
STARTING = Health("starting", 503)
UNAVAILABLE = Health("unavailable", 503)  # no stage serves
DRAINING = Health("draining", 503)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One row. `within_s` is from the fault to the error, or to the end of what it concerns; with
    `after` from the moment at which that setting's time is over. Without either, an error comes
    with the step, or the attempt, that fails.
    """

    id: str
    target: Target
    what: str
    fails: str = "none"
    error: type[AntiphonError] | None = None
    within_s: float | None = None
    after: str | None = None
    restarted: str | None = None
    health: tuple[Health, ...] = (OK,)  # in order, until all is as before; () nobody can ask
    left: str = "nothing"
    checked: str  # how it is seen that no more is left
    levels: tuple[Level, ...] = (Level.WIRE,)
    tests: tuple[str, ...]


PROCESS = "its process"
GONE = "units at every stage, chunks under way, files in shared memory, processes"
IN_ENGINE = "the integrity of every store after each step; blocks, rows and payloads are 0"
