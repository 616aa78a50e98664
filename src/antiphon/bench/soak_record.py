"""What a soak writes down: calls, faults, windows of unavailability, samples, what is left.

All times are seconds since the soak began.
"""

from __future__ import annotations

import enum

import msgspec


class Kind(enum.StrEnum):
    """What a caller does."""

    TEXT = "text"
    SPEECH = "speech"  # a text is read out
    CHAT = "chat"  # a question is answered in all that the entry gives
    SESSION = "session"  # a few segments, some of them interrupted
    ABORT = "abort"  # the call is aborted by its id
    LEAVE = "leave"  # the caller stops listening
    HASTY = "hasty"  # a deadline that is too short for most answers
    BAD = "bad"  # an input that has to be refused


class Outcome(enum.StrEnum):
    """How a call ended. Exactly one of them is a call's."""

    WHOLE = "whole"
    FAILED = "failed"
    ABORTED = "aborted"
    LEFT = "left"
    REFUSED = "refused"  # a bad input, as it has to be
    HUNG = "hung"  # it did not end


class FaultKind(enum.StrEnum):
    """What is done to the pipeline, or which caller comes in addition."""

    KILL = "kill"
    TERM = "term"
    STOP = "stop"
    FULL = "full"
    RESTART = "restart"
    DRAIN = "drain"
    SLEEP = "sleep"
    ABORT = "abort"
    LEAVE = "disconnect"
    INTERRUPT = "interrupt"
    BAD = "bad"


class Called(msgspec.Struct, kw_only=True):
    """One call, from its begin to its outcome."""

    label: str
    kind: Kind
    stages: tuple[str, ...]  # that it needs
    began_s: float
    deadline_s: float  # from its begin
    ended_s: float | None = None
    outcome: Outcome | None = None
    code: str | None = None  # of the error
    message: str | None = None
    stage: str | None = None  # that the error names
    outcomes: int = 0  # that its caller was given
    wrong: str | None = None  # what is not right about a whole answer
    letting_go_s: float = 0.0  # that an abort, an interruption or a close took
    replicas: dict[str, int] = {}  # which had it, as far as it came


class Done(msgspec.Struct, kw_only=True):
    """A fault, as it was injected."""

    at_s: float
    kind: FaultKind
    target: str  # the replica, or what it concerns
    seconds: float = 0.0  # that it lasts
    note: str = ""  # why it was not injected, or what came of it
    injected: bool = True


class Window(msgspec.Struct, kw_only=True):
    """Time in which a replica cannot be counted on, from a fault on until it serves again."""

    stage: str
    number: int
    kind: FaultKind
    began_s: float
    restarts: int  # of the replica, before
    ended_s: float | None = None
    ends_process: bool = False
    lifted: bool = True  # the fault itself is over: the process goes on, may write, takes requests
    survived: bool = False  # it is over, and the process is the one from before

    @property
    def replica(self) -> str:
        return f"{self.stage}/{self.number}" if self.number else self.stage

    def overlaps(self, began_s: float, ended_s: float) -> bool:
        """Whether it was open at any time between the two."""
        return self.began_s <= ended_s and (self.ended_s is None or self.ended_s >= began_s)


class Sample(msgspec.Struct, frozen=True):
    """Of the tool's own process."""

    at_s: float
    resident_bytes: int
    threads: int
    descriptors: int


class Held(msgspec.Struct, frozen=True):
    """What a replica holds when nothing is to be alive."""

    replica: str
    requests: int
    gated: int
    blocks: int  # in use
    worker_requests: int
    connector_entries: int
    integrity_failures: int

    @property
    def nothing(self) -> bool:
        return not any(msgspec.structs.astuple(self)[1:])


class Process(msgspec.Struct, frozen=True):
    """What the tool's own process has, by name."""

    resident_bytes: int
    threads: tuple[str, ...]  # without those of pools, whose number has a bound
    descriptors: tuple[str, ...]  # what each one leads to


class Remains(msgspec.Struct, kw_only=True):
    """What was there after the last call had ended, and after the pipeline was closed."""

    idle_error: str | None = None  # the pipeline could not be asked, or a check failed
    held: tuple[Held, ...] = ()
    running: int = 0  # requests that the router has
    admitted: dict[str, int] = {}  # by stage
    open_requests: tuple[str, ...] = ()  # that an observer was told of, with no end
    ended_twice: tuple[str, ...] = ()
    late_outputs: int = 0
    broken: list[str] = []  # what is no error of ours, and ended a caller or a fault
    before: Process | None = None
    after: Process | None = None
    files: tuple[str, ...] = ()  # of the run, after closing
    processes: tuple[int, ...] = ()
    close_s: float = 0.0


class Soak(msgspec.Struct, kw_only=True):
    """Everything that a soak has found."""

    pipeline: str
    seed: int
    callers: int
    every_s: float
    silence_s: float
    planned_s: float
    replicas: dict[str, int]
    lasted_s: float = 0.0
    stopped_early: bool = False
    calls: list[Called] = []
    faults: list[Done] = []
    windows: list[Window] = []
    sleeps: list[tuple[float, float]] = []
    samples: list[Sample] = []
    lag_s: float = 0.0  # by which the event loop was late at most
    notices: list[str] = []
    remains: Remains = msgspec.field(default_factory=Remains)
