"""Replicas that end, hang, or are started again on purpose: who is told, and when."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from antiphon.connector.runs import new_run_token
from antiphon.core.options import ConnectorSpec
from antiphon.errors import AntiphonError, StageDiedError, StageStartError
from antiphon.orchestrator.clients import Frames, OnEvent, OnGone
from antiphon.orchestrator.replica import Replica, ReplicaState
from antiphon.orchestrator.stages import StageSet
from antiphon.pipeline.supervision import Supervision
from antiphon.pipeline.topology import StageKind
from antiphon.stage.messages import Event, Ping, Ready
from antiphon.stage.spec import StageSpec
from antiphon.testing.clock import ManualClock
from antiphon.testing.fake_stage import FakeStage
from antiphon.testing.fault_table import Fault
from routing import settle

READY = Ready(max_model_len=8, num_blocks=1, block_size=8, vllm_version="")
A, B = Replica("talker"), Replica("talker", 1)


@dataclass
class Heard:
    """What is told of two replicas, and the processes that have served them, oldest first."""

    supervision: Supervision = field(default_factory=Supervision)
    start_timeout_s: float = 60.0
    gone: list[tuple[Replica, str, float | None]] = field(default_factory=list)
    back: list[Replica] = field(default_factory=list)
    made: list[FakeStage] = field(default_factory=list)
    says: list[OnEvent] = field(default_factory=list)
    broken: bool = False  # no process can be made
    deaf: bool = False  # what is told of an end raises
    third: asyncio.Event = field(default_factory=asyncio.Event)  # has been made
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        run = new_run_token()
        spec = StageSpec("talker", StageKind.AR, "/nowhere", {}, ConnectorSpec("shm", run))
        self.stages = StageSet(
            {A: spec, B: spec},
            self,
            run=run,
            supervision=self.supervision,
            on_progress=lambda *_: None,
            make_client=self._make,
            clock=self.clock,
            later=self.clock.later,
        )

    def _make(self, spec: StageSpec, on_event: OnEvent, on_gone: OnGone) -> FakeStage:
        if self.broken:
            raise OSError("no memory")
        self.made.append(FakeStage(spec.name, on_event, on_gone))
        self.says.append(on_event)
        if len(self.made) <= 2:
            self.made[-1].emit(READY)
        else:
            self.third.set()
        return self.made[-1]

    def on_event(self, replica: Replica, event: Event, frames: Frames) -> None: ...

    def on_gone(self, replica: Replica, why: AntiphonError, restart_in_s: float | None) -> None:
        self.gone.append((replica, str(why), restart_in_s))
        if self.deaf:
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
            raise RuntimeError("the listener fell")

    def on_back(self, replica: Replica) -> None:
        self.back.append(replica)

    async def __aenter__(self) -> Heard:
        await self.stages.start(self.start_timeout_s)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stages.stop()
        assert self.clock.ordered == 0

    async def after(self, seconds: float) -> None:
        """Time passes in small steps, in which what is due happens."""
        await settle()  # first what has happened already
        for _ in range(round(seconds / 0.5)):
            self.clock.advance(0.5)
            await settle()

    def word(self, replica: Replica) -> str:
        return str(self.state(replica).state)

    def state(self, replica: Replica) -> ReplicaState:
        seat = self.stages.seats[replica]
        return seat.state(self.clock(), asleep=False, draining=False)


async def test_who_ends_is_started_again_after_a_pause() -> None:
    async with Heard() as heard:
        heard.made[0].die(StageDiedError("it fell"))
        await settle()
        assert heard.gone == [(A, "it fell", 1.0)]
        state = heard.state(A)
        assert (state.state, state.why, state.restart_in_s) == ("restarting", "it fell", 1.0)
        await heard.after(0.5)
        assert len(heard.made) == 2
        await heard.after(0.5)
        assert len(heard.made) == 3
        assert (heard.word(A), heard.back) == ("restarting", [])
        heard.made[2].emit(READY)
        await settle()
        assert heard.back == [A]
        assert (heard.word(A), heard.state(A).restarts, heard.word(B)) == ("ready", 1, "ready")
        assert heard.stages.clients[A] is heard.made[2]


async def test_who_ends_too_often_stays_down() -> None:
    async with Heard(Supervision(restarts=2, backoff_s=1)) as heard:
        heard.made[0].die(StageDiedError("it fell"))
        await heard.after(1)
        heard.made[2].die(StageStartError("no weights"))  # a start that fails is an end as well
        await heard.after(2)
        heard.made[3].emit(READY)
        heard.made[3].die(StageDiedError("it fell again"))
        await heard.after(600)
        assert [pause for _, _, pause in heard.gone] == [1.0, 2.0, None]
        assert (heard.word(A), heard.state(A).why) == ("gone", "it fell again")
        assert len(heard.made) == 4
        await heard.after(1)
        assert heard.word(B) == "ready"


async def test_a_new_process_that_is_never_ready_is_ended() -> None:
    async with Heard(start_timeout_s=10) as heard:
        heard.made[0].die()
        await heard.after(1)
        await heard.after(9.5)
        assert not heard.made[2].gone
        await heard.after(0.5)
        assert heard.made[2].gone
        assert "was not ready 10 s after" in heard.gone[-1][1]
        await heard.after(2)
        heard.made[3].emit(READY)
        await heard.after(30)
        assert (heard.word(A), len(heard.made)) == ("ready", 4)


async def test_a_process_that_cannot_be_made_is_tried_again() -> None:
    async with Heard() as heard:
        heard.broken = True
        heard.made[0].die()
        await heard.after(1)
        assert "could not be started again: no memory" in heard.gone[-1][1]
        heard.broken = False
        await heard.after(2)
        heard.made[2].emit(READY)
        await settle()
        assert heard.word(A) == "ready"


async def test_who_hangs_is_noted_and_ended() -> None:
    """C14: a process that answers nothing is not waited for for ever."""
    async with Heard(Supervision(silence_s=20)) as heard:
        await heard.after(30)
        assert (heard.word(A), heard.word(B)) == ("ready", "ready")
        assert heard.made[0].sent(Ping)
        heard.made[0].frozen = True
        await heard.after(10)
        assert heard.word(A) == "silent"
        await heard.after(14)
        (gone,) = heard.gone
        assert gone[0] == A
        assert "stage 'talker' gave no sign of life for 20 s" in gone[1]
        assert heard.made[0].gone
        assert heard.word(B) == "ready"


async def test_who_comes_to_itself_in_time_is_let_be() -> None:
    async with Heard(Supervision(silence_s=20)) as heard:
        heard.made[1].frozen = True
        await heard.after(12)
        assert heard.word(B) == "silent"
        heard.made[1].frozen = False
        heard.made[1].send(Ping())  # what had been sent is read
        await heard.after(60)
        assert (heard.word(B), heard.gone) == ("ready", [])


@pytest.mark.fault("monotonic-clock-jumps")
async def test_a_watcher_that_was_stopped_blames_nobody(fault: Fault) -> None:
    """The clock goes on by an hour in which nothing could be asked."""
    async with Heard(Supervision(silence_s=20)) as heard:
        heard.made[0].frozen = True
        await heard.after(4)
        heard.made[0].frozen = False
        heard.clock._now += 3600.0
        heard.made[0].send(Ping())
        await heard.after(10)
        assert heard.gone == []
        assert (fault.error, fault.restarted) == (None, None)


async def test_a_restart_on_purpose() -> None:
    async with Heard() as heard:
        restart = asyncio.create_task(heard.stages.restart(B))
        await heard.third.wait()
        assert heard.gone == [(B, "stage 'talker/1' is started again", 0.0)]
        assert not restart.done()
        heard.made[2].emit(READY)
        await restart
        assert (heard.back, heard.word(B), heard.state(B).restarts) == ([B], "ready", 1)


async def test_a_restart_of_one_that_is_down() -> None:
    async with Heard(Supervision(restarts=0)) as heard:
        heard.made[0].die()
        await settle()
        assert heard.word(A) == "gone"
        restart = asyncio.create_task(heard.stages.restart(A))
        await settle()
        heard.made[2].die(StageStartError("no weights"))
        with pytest.raises(StageStartError, match="no weights"):
            await restart
        assert heard.word(A) == "gone"


async def test_nothing_is_started_once_the_pipeline_is_closed() -> None:
    async with Heard() as heard:
        heard.made[0].die()
        await settle()
    heard.clock.advance(100)
    assert len(heard.made) == 2


async def test_what_listens_may_fail_and_the_replica_is_started_again_all_the_same() -> None:
    async with Heard() as heard:
        heard.deaf = True
        heard.made[0].die()
        await heard.after(1)
        heard.deaf = False
        heard.made[2].emit(READY)
        await settle()
        assert heard.word(A) == "ready"


async def test_a_death_in_the_middle_of_a_restart_starts_one_process() -> None:
    async with Heard(Supervision(backoff_s=0)) as heard:
        restart = asyncio.create_task(heard.stages.restart(B))
        await asyncio.sleep(0)
        heard.made[1].die()
        await heard.third.wait()
        await heard.after(1)
        assert len(heard.made) == 3
        heard.made[2].emit(READY)
        await restart
        assert (heard.word(B), heard.state(B).restarts) == ("ready", 1)


async def test_a_restart_that_nobody_waits_for_any_more_goes_on() -> None:
    async with Heard() as heard:
        restart = asyncio.create_task(heard.stages.restart(B))
        await asyncio.sleep(0)
        restart.cancel()
        await heard.third.wait()
        with pytest.raises(asyncio.CancelledError):
            await restart
        assert heard.word(B) == "restarting"
        heard.made[2].emit(READY)
        await settle()
        assert (heard.word(B), heard.back) == ("ready", [B])


async def test_what_a_process_says_after_its_successor_was_made_is_ignored() -> None:
    async with Heard() as heard:
        restart = asyncio.create_task(heard.stages.restart(B))
        await heard.third.wait()
        heard.says[1]("talker", READY, ())
        await settle()
        assert (heard.word(B), heard.back) == ("restarting", [])
        heard.made[2].emit(READY)
        await restart


async def test_who_is_ready_when_all_has_been_stopped_is_ignored() -> None:
    async with Heard() as heard:
        heard.made[0].die()
        await heard.after(1)
    heard.says[2]("talker", READY, ())
    await settle()
    assert heard.back == []
