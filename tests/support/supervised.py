"""The real `AsyncOmni` over processes without engines that come and go, on a loop by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableSet, Sequence
from dataclasses import replace
from pathlib import Path

from antiphon import AsyncOmni
from antiphon.connector.runs import data_name, key_digest, shm_directory
from antiphon.core.supervision import LifePhase
from antiphon.errors import AntiphonError, InvalidRequestError
from antiphon.observe.record import Timeline
from antiphon.orchestrator.clients import OnEvent, OnGone
from antiphon.orchestrator.replica import Replica
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.entry import EntryRequest
from antiphon.pipeline.stage_deployment import StageDeployment
from antiphon.pipeline.supervision import Supervision
from antiphon.pipeline.topology import Entry, Topology
from antiphon.stage.messages import Command, Ping, Stop, Update
from antiphon.stage.spec import StageSpec
from antiphon.testing.clock import ManualClock
from antiphon.testing.fake_stage import FakeStage
from fake_server import FAKE, READY
from manual_loop import ManualLoop
from sample_pipeline import CODES, SPEECH

_ADAPTER = "supervised:Talking"
_ENTRIES = (
    Entry("chat", "thinker", _ADAPTER, params=("speaker",)),
    Entry("speech", "talker", _ADAPTER, params=("speaker",)),
)
STREAMS = replace(FAKE, entries=_ENTRIES)
PARTS = replace(STREAMS, edges=(SPEECH, CODES))
EDGES = {"thinker": "speech", "talker": "codes"}
SUPERVISION = Supervision(restarts=2, window_s=60.0, backoff_s=1.0, max_backoff_s=3.0, silence_s=8)
START_TIMEOUT_S = 20.0
TICK_S = 0.8  # a tenth of the silence that is allowed
MAX_NUM_SEQS, MAX_QUEUED = 2, 1


class Talking:
    """Any text is a prompt, and goes on with any."""

    def __init__(self, checkpoint: Path) -> None: ...

    def prompts(self, request: EntryRequest) -> Sequence[list[int]]:
        return [[1]]

    def continuation(self, text: str) -> list[int]:
        return [7]


class Payloads(MutableSet[str]):
    """Keys of payloads, each with a file in shared memory of the name that a real one has.

    The keys of stages without engines begin with the stage's name, before the unit's.
    """

    def __init__(self) -> None:
        self.run = ""
        self._paths: dict[str, Path] = {}

    def add(self, key: str) -> None:
        unit_first = key.partition("/")[2]
        path = shm_directory() / data_name(self.run, key_digest(unit_first))
        path.touch(mode=0o600)
        self._paths[key] = path

    def discard(self, key: str) -> None:
        if (path := self._paths.pop(key, None)) is not None:
            path.unlink(missing_ok=True)

    def __contains__(self, key: object) -> bool:
        return key in self._paths and self._paths[key].exists()  # type: ignore[index]

    def __iter__(self) -> Iterator[str]:
        return iter([key for key in self._paths if key in self])

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Process(FakeStage):
    """One process of a replica; it sleeps and answers when it is told to.

    `owed` are the payloads (unit, edge, epoch) whose end it has not sent.
    """

    def __init__(self, spec: StageSpec, replica: Replica, world: Supervised) -> None:
        self.replica = replica
        self.serves = False  # it has said that it is ready
        self.known_gone = False  # and everybody has heard of its end
        self.told_to_sleep = False
        self.began_s = world.clock()
        self.frozen_since_s: float | None = None
        self.owed: set[tuple[str, str, int]] = set()
        self._paid: set[tuple[str, str, int]] = set()
        self._world = world
        on_event, on_gone = world.callbacks
        super().__init__(spec.name, on_event, on_gone, keys=world.payloads)
        self.light_sleeper = False

    def __repr__(self) -> str:
        return f"{self.replica} from {self.began_s:g}"

    def send(self, command: Command) -> None:
        assert not self.known_gone, f"{command} was sent to {self.replica}, which has ended"
        assert self.serves or isinstance(command, Stop), f"{command} before {self.replica} serves"
        if not isinstance(command, Ping):
            self._world.on_command(self, command)
        super().send(command)

    def _update(self, update: Update) -> None:
        if update.uid in self.sessions:
            super()._update(update)
        else:
            self._soon(self.fail, update.uid, InvalidRequestError("there is no such session"))

    def come_up(self) -> None:
        self.serves = True
        self.emit(READY)

    def freeze(self) -> None:
        if not self.frozen:
            self.frozen, self.frozen_since_s = True, self._world.clock()

    def thaw(self) -> None:
        if self.frozen and not self.gone:
            self.frozen, self.frozen_since_s = False, None

    def die(self, why: AntiphonError | None = None) -> None:
        if not self.gone:
            self._world.on_death(self)
        super().die(why)

    @property
    def able(self) -> bool:
        """Whether it can compute."""
        return self.answers and not self.slumber.asleep

    @property
    def answers(self) -> bool:
        """Whether it hears and says anything."""
        return self.serves and not self.gone and not self.frozen

    def running(self) -> list[str]:
        """Units that may go on; of sessions those that rest not."""
        if not self.able:
            return []
        resting = {uid for uid, session in self.sessions.items() if session.resting}
        return sorted(self.live.keys() - self.waiting - resting)

    def note_owed(self) -> None:
        for uid, submit in self.live.items():
            for edge in submit.edges:
                key = (uid, edge, self.epoch(uid))
                if key not in self._paid:
                    self.owed.add(key)

    def pay(self, key: tuple[str, str, int], *, end: bool, empty: bool = False) -> None:
        """Send a payload."""
        uid, edge, epoch = key
        if end:
            self.owed.discard(key)
            self._paid.add(key)
        self.ref(uid, edge, end=end, empty=empty and end, epoch=epoch)


class Books:
    """An observer: every request that begins ends once."""

    def __init__(self) -> None:
        self.open: set[str] = set()

    def began(self, uid: str, path: tuple[str, ...]) -> None:
        assert uid not in self.open
        self.open.add(uid)

    def first_output(self, uid: str) -> None:
        assert uid in self.open, "an output of what is over"

    def ended(self, timeline: Timeline) -> None:
        assert timeline.id in self.open, "a second end, or one of what never began"
        self.open.remove(timeline.id)

    def refused(self, code: str) -> None: ...


class Supervised:
    """A pipeline, its processes, and the loop that all of it runs on."""

    def __init__(
        self,
        loop: ManualLoop,
        topology: Topology,
        replicas: dict[str, int],
        on_command: Callable[[Process, Command], None],
        on_death: Callable[[Process], None],
    ) -> None:
        self.loop = loop
        self.clock: ManualClock = loop.clock
        self.on_command = on_command
        self.on_death = on_death
        self.replicas = [Replica(s, n) for s in topology.stage_names for n in range(replicas[s])]
        self.payloads = Payloads()
        self.books = Books()
        self.processes: dict[Replica, Process] = {}  # the newest of each
        self.all: list[Process] = []
        self.notices: list[str] = []
        self.callbacks: tuple[OnEvent, OnGone]
        self._starting = Replica("")
        self._first_start = True
        stages = {name: StageDeployment(max_num_seqs=MAX_NUM_SEQS) for name in replicas}
        self.omni = AsyncOmni(
            topology,
            deployment=Deployment(
                replicas=replicas,
                stages=stages,
                supervision=SUPERVISION,
                start_timeout_s=START_TIMEOUT_S,
            ),
            make_client=self._make,
            max_queued=MAX_QUEUED,
            on_progress=self._on_progress,
            on_notice=self.notices.append,
            clock=self.clock,
            later=self.clock.later,
        )
        self.omni.observe(self.books)
        # What holds at every moment is said of the router, which `AsyncOmni` shows to nobody.
        self.router = self.omni._router

    def _on_progress(self, stage: str, phase: str) -> None:
        """A process is made right after it is said for which replica."""
        name, _, number = stage.partition("/")
        self._starting = Replica(name, int(number or 0))

    def _make(self, spec: StageSpec, on_event: OnEvent, on_gone: OnGone) -> FakeStage:
        self.callbacks = on_event, on_gone
        self.payloads.run = str(spec.connector.run)
        process = Process(spec, self._starting, self)
        self.processes[self._starting] = process
        self.all.append(process)
        if self._first_start:
            process.come_up()
        return process

    def start(self) -> None:
        task = self.loop.create_task(self.omni.start())
        self.loop.settle()
        task.result()
        self._first_start = False

    def settle(self) -> None:
        """Let everything happen; all have heard of what has ended."""
        self.loop.settle()
        for process in self.all:
            process.known_gone = process.gone

    def ends_on_purpose(self, replica: Replica) -> bool:
        """Whether its process is being ended because somebody has it started again."""
        stages = self.omni._stages  # as with the router
        return stages is not None and stages.seats[replica].life.phase is LifePhase.STOPPED

    def limit(self, stage: str) -> int:
        """Requests that a stage may have."""
        count = sum(replica.stage == stage for replica in self.replicas)
        return count * MAX_NUM_SEQS + MAX_QUEUED
