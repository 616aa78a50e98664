"""What a test expects of a supervised pipeline: its callers, its replicas, and what each is due."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from antiphon.errors import AntiphonError
from antiphon.orchestrator.api import AudioChunk, Finished, OmniEvent, SessionEvent, TextDelta
from antiphon.orchestrator.live import PATIENCE_S, LiveRequest
from antiphon.orchestrator.replica import Replica
from antiphon.orchestrator.segments import LiveSession
from antiphon.orchestrator.sessions import Session
from routing import WORDS
from supervised import SUPERVISION, Process

SCALE = 64  # the sound of caller n has the value n % 64 / 64


def word(number: int) -> int:
    """The token that is said to a caller, and to no other near it."""
    return number % len(WORDS)


def sample(number: int) -> float:
    return number % SCALE / SCALE


@dataclass(eq=False, repr=False)
class Caller:
    """Who has made a request or opened a session, known by its number.

    `reasons` are the types of what may end it, and `due_s` is when something must have.
    """

    number: int
    path: tuple[str, ...]
    label: str
    live: LiveRequest | LiveSession | None = None  # once it has been submitted
    replicas: dict[str, Replica] = field(default_factory=dict)  # that have been sent anything of it
    running: set[tuple[str, str]] = field(default_factory=set)  # (stage, unit) that have no end
    reasons: set[type] = field(default_factory=set)
    due_s: float | None = None
    named: set[str] = field(default_factory=set)  # stages that have died under it
    gone: bool = False  # nobody waits for its outcome any more
    outcome: Finished | AntiphonError | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__} {self.number}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def expect(self, reason: type, now: float | None, patience_s: float = PATIENCE_S) -> None:
        """It may end so from now on, and has to soon unless `now` is None."""
        self.reasons.add(reason)
        if now is not None and self.outcome is None:
            due_s = now + patience_s
            self.due_s = due_s if self.due_s is None else min(self.due_s, due_s)

    @property
    def alive(self) -> bool:
        """Whether some stage may still hold something of it."""
        return self.live is not None and not self.live.ended.is_set()

    def bound(self, replica: Replica) -> bool:
        return self.live is not None and self.live.route.replicas.get(replica.stage) == replica

    def needs(self, process: Process) -> bool:
        """Whether something is still to come from this process."""
        stage = process.replica.stage
        units = {uid for at, uid in self.running if at == stage}
        root = "" if self.live is None else f"{self.live.uid}."
        return bool(units) or any(uid.startswith(root) for uid, _, _ in process.owed)

    def check(self, now: float) -> None:
        """Raise AssertionError if its outcome is not what it may be, or does not come."""
        if self.outcome is None:
            late = self.due_s is not None and now > self.due_s and not self.gone
            assert not late, f"caller {self.number} has waited too long: {self.reasons}"
        elif isinstance(self.outcome, AntiphonError):
            assert type(self.outcome) in self.reasons, f"{self.outcome!r} of {self.number}"
            if self.named and len(self.reasons) == 1:
                said = str(self.outcome)
                assert any(stage in said for stage in self.named), f"whose death was it? {said}"


@dataclass(eq=False, repr=False)
class Request(Caller):
    """One that reads its stream to the end."""

    task: asyncio.Task[None] | None = None
    stops: tuple[str, ...] = ()
    text: str = ""

    def take(self, event: OmniEvent) -> None:
        assert self.outcome is None, "something came after the outcome"
        match event:
            case TextDelta(text):
                self.text += text  # not always whole words: of one, a stop string may begin
                spoken = " ".join([WORDS[word(self.number)]] * (len(self.text) + 1))
                assert spoken.startswith(self.text.strip()), "another's text"
            case AudioChunk(samples, _, _):
                assert set(samples.tolist()) == {sample(self.number)}, "another's sound"
            case Finished():
                self.outcome = event

    def check(self, now: float) -> None:
        super().check(now)
        if isinstance(self.outcome, Finished):
            reply = self.outcome.reply
            if reply.finish_reason == "abort":
                assert Finished in self.reasons, "nobody has aborted it"
            elif not self.stops:
                assert not self.running, f"it ended before {self.running}"
            assert not any(stop in reply.text for stop in self.stops)
        if self.live is not None and self.outcome is not None:
            assert isinstance(self.live, LiveRequest)
            assert self.live.events.empty(), "something came after the outcome"


@dataclass(eq=False, repr=False)
class Talk(Caller):
    """One that holds a session."""

    session: Session | None = None
    said: int = 0
    fence: int = 0  # segments below it have been interrupted
    replacing: int = 0  # replacements that are under way: they interrupt at some time
    closed: bool = False
    ended: bool = False
    unit: str = ""
    ends: dict[int, str] = field(default_factory=dict)

    def expect(self, reason: type, now: float | None, patience_s: float = PATIENCE_S) -> None:
        """One that is being closed ends when everybody has acknowledged it, and has no error."""
        super().expect(reason, None if self.closed else now, patience_s)

    def needs(self, process: Process) -> bool:
        return process.replica.stage in self.path

    def take(self, event: SessionEvent) -> None:
        number = event.segment
        assert number not in self.ends, "something came after a segment's end"
        match event.event:
            case TextDelta(text):
                assert set(text.split()) <= {WORDS[word(self.number)]}, "another's text"
                assert number >= self.fence, "text of an interrupted segment"
            case AudioChunk(samples, _, _):
                assert set(samples.tolist()) == {sample(self.number)}, "another's sound"
                assert number >= self.fence, "sound of an interrupted segment"
            case Finished(reply):
                self.ends[number] = reply.finish_reason
                interrupted = number < self.fence or self.replacing
                assert reply.finish_reason != "interrupt" or interrupted
                assert reply.finish_reason != "abort" or self.closed


@dataclass(eq=False, repr=False)
class Post:
    """One replica's place, and when what ended there is to be started again."""

    replica: Replica
    ends: list[float] = field(default_factory=list)
    due_s: float | None = None  # when the next process is
    down: bool = False
    draining: bool = False
    restarts: int = 0  # on purpose, that go on: until then nothing is said of it

    def died(self, now: float) -> None:
        self.ends = [end for end in [*self.ends, now] if end > now - SUPERVISION.window_s]
        count = len(self.ends)
        self.down = count > SUPERVISION.restarts
        pause = min(SUPERVISION.backoff_s * 2 ** (count - 1), SUPERVISION.max_backoff_s)
        self.due_s = None if self.down else now + pause
