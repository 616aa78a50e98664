"""A supervised pipeline, its callers and operators: who enters, and what is expected then."""

from __future__ import annotations

import asyncio
import enum
import itertools
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine

from antiphon.errors import (
    AntiphonError,
    DuplicateRequestError,
    OverloadedError,
    ShutdownError,
    StageDiedError,
)
from antiphon.orchestrator.administration import MEMORY
from antiphon.orchestrator.replica import Replica
from antiphon.stage.messages import Abort, Command, Deliver, Interrupt, Sleep, Submit, Update
from antiphon.testing.clock import ManualClock
from manual_loop import ManualLoop
from pipeline_model import Caller, Post, Request, Talk
from supervised import (
    PARTS,
    START_TIMEOUT_S,
    STREAMS,
    SUPERVISION,
    TICK_S,
    Process,
    Supervised,
)


class Question(enum.Enum):
    """What an operator waits for."""

    OTHER = enum.auto()
    SLUMBER = enum.auto()
    RESTART = enum.auto()


class PipelineWorld(RuleBasedStateMachine):
    """The pipeline, and what is expected of it."""

    world: Supervised

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.loop = ManualLoop(self.clock)
        self.numbers = itertools.count()
        self.callers: list[Caller] = []
        self.owners: dict[str, Caller] = {}  # by unit
        self.posts: dict[Replica, Post] = {}
        self.questions: list[tuple[Question, asyncio.Task[Any], Replica | None]] = []
        self.sayings: list[tuple[Talk, asyncio.Task[int], bool]] = []
        self.blamed: Process | None = None  # whom a rule kills
        self.closing: asyncio.Task[None] | None = None
        self.parts = False
        self.to_sleep: frozenset[str] = frozenset()  # memory that all are to have given back

    # --- the world ----------------------------------------------------------------------------

    def open(self, parts: bool, replicas: dict[str, int]) -> None:
        self.parts, self.counts = parts, replicas
        self.callers, self.owners, self.closing = [], {}, None
        self.to_sleep = frozenset()
        topology = PARTS if parts else STREAMS
        self.world = Supervised(self.loop, topology, replicas, self.on_command, self.on_death)
        self.world.start()
        self.posts = {replica: Post(replica) for replica in self.world.replicas}

    @property
    def processes(self) -> list[Process]:
        return list(self.world.processes.values())

    @property
    def requests(self) -> list[Request]:
        return [c for c in self.callers if isinstance(c, Request) and c.outcome is None]

    @property
    def talks(self) -> list[Talk]:
        return [c for c in self.callers if isinstance(c, Talk) and not c.ended and c.live]

    def on_command(self, process: Process, command: Command) -> None:
        """A router sends each request's commands to one replica per stage, the one that serves."""
        assert self.world.processes[process.replica] is process, "sent to one that was replaced"
        match command:
            case Submit():
                caller = self.caller(int(command.params["speaker"]))
                self.owners[command.uid] = caller
                self.note_sent(process, caller)
                if not command.session:
                    caller.running.add((process.replica.stage, command.uid))
            case Update() | Interrupt():
                self.note_sent(process, self.owners[command.uid])
            case Deliver():
                for uid, _ in command.items:
                    self.note_sent(process, self.owners[uid])
            case Abort():
                for uid in command.uids:
                    self.note_sent(process, self.owners[uid])
            case Sleep():
                process.told_to_sleep, self.to_sleep = True, MEMORY

    def note_sent(self, process: Process, caller: Caller) -> None:
        stage = process.replica.stage
        assert caller.replicas.setdefault(stage, process.replica) == process.replica, "not sticky"

    def on_death(self, process: Process) -> None:
        """By a rule, or by whoever looks after the processes."""
        if process is self.blamed:
            self.blamed = None
        elif process.serves:
            since = process.frozen_since_s
            assert since is not None, "one that is well was ended"
            assert self.clock() - since > SUPERVISION.silence_s - 2 * TICK_S, "ended too soon"
        else:
            late_s = self.clock() - process.began_s
            assert late_s >= START_TIMEOUT_S - 1e-6, "ended while it starts"
        process.note_owed()
        for caller in self.callers:
            if caller.alive and caller.bound(process.replica) and caller.needs(process):
                caller.expect(StageDiedError, self.clock())
                caller.named.add(process.replica.stage)
        if not self.world.ends_on_purpose(process.replica):
            self.posts[process.replica].died(self.clock())

    def caller(self, number: int) -> Caller:
        return next(caller for caller in self.callers if caller.number == number)

    # --- requests and questions ---------------------------------------------------------------

    def enter(self, caller: Caller, coming: Coroutine[Any, Any, None]) -> None:
        """A request is made, or a session opened: it is taken or refused as it has to be."""
        held = self.loop.holding and isinstance(caller, Request)
        certain = not held and not any(post.restarts for post in self.posts.values())
        refusal = self.refusal(caller)
        loads = self.loads()
        takers = {stage: self.takers(stage) for stage in caller.path}
        self.callers.append(caller)
        if not certain:  # it may be another world by the time that it is submitted
            caller.reasons |= {ShutdownError, DuplicateRequestError, StageDiedError}
            caller.reasons.add(OverloadedError)
        elif refusal is not None:
            caller.reasons.add(refusal)
        task = self.loop.create_task(coming)
        if isinstance(caller, Request):
            caller.task = task
        self.world.settle()
        self.find(caller)
        if not certain:
            return
        if refusal is not None:
            assert type(caller.outcome) is refusal, f"{caller.outcome!r} in place of {refusal}"
            return
        assert caller.live is not None, f"{caller.outcome!r} without a reason"
        for stage, replica in caller.live.route.replicas.items():
            assert replica in takers[stage], f"{replica} was given a request"
            least = min(loads[taker] for taker in takers[stage])
            assert loads[replica] == least, f"{replica} has more to do than another"

    def find(self, caller: Caller) -> None:
        """What the router keeps of a caller, once it does."""
        if caller.live is None and caller.outcome is None:
            live = self.world.router.find(caller.label)
            if live is not None and self.number_of(live) in (None, caller.number):
                caller.live = live

    def number_of(self, live: Any) -> int | None:
        flow = vars(live).get("flow") if hasattr(live, "__dict__") else live.flow
        return None if flow is None else int(flow.plan.request.params["speaker"])

    def refusal(self, caller: Caller) -> type[AntiphonError] | None:
        """Why a request that is made now does not begin."""
        if self.closing is not None:
            return ShutdownError
        if self.world.router.find(caller.label) is not None:
            return DuplicateRequestError
        if any(not self.takers(stage) for stage in caller.path):
            return StageDiedError
        if any(self.load(stage) >= self.world.limit(stage) for stage in caller.path):
            return OverloadedError
        return None

    def takers(self, stage: str) -> list[Replica]:
        return [
            replica
            for replica, post in self.posts.items()
            if replica.stage == stage and not post.draining and not post.restarts
            if (process := self.world.processes[replica]).serves and not process.gone
        ]

    def loads(self) -> Counter[Replica]:
        return Counter(
            replica
            for caller in self.callers
            if caller.alive and caller.live is not None
            for replica in caller.live.route.replicas.values()
        )

    def load(self, stage: str) -> int:
        """Requests that a stage has, and those that are about to come."""
        return sum(
            stage in caller.path
            for caller in self.callers
            if caller.alive
            or (
                isinstance(caller, Request)
                and caller.live is None
                and caller.task is not None
                and not caller.task.done()
            )
        )

    def ask(
        self,
        asked: Coroutine[Any, Any, Any],
        kind: Question = Question.OTHER,
        replica: Replica | None = None,
    ) -> None:
        """Somebody waits for an answer from now on."""
        if replica is not None:
            self.posts[replica].restarts += 1
        self.questions.append((kind, self.loop.create_task(asked), replica))
        self.world.settle()

    def wake_up(self, tags: list[str] | None) -> None:
        self.to_sleep -= MEMORY if tags is None else frozenset(tags)
        self.ask(self.world.omni.wake(tags), Question.SLUMBER)

    def say(self, talk: Talk, said: Coroutine[Any, Any, int], *, replaces: bool = False) -> None:
        self.sayings.append((talk, self.loop.create_task(said), replaces))
        self.world.settle()

    @property
    def slumber_asked(self) -> bool:
        """Whether the stages are being told to sleep or to wake."""
        return any(kind is Question.SLUMBER for kind, _, _ in self.questions)
