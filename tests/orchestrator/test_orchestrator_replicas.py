"""Several replicas of a stage: who gets which request, and whom the end of one concerns."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from antiphon.errors import InvalidRequestError, StageDiedError
from antiphon.orchestrator.api import OmniRequest
from antiphon.orchestrator.flow import FlowPlan
from antiphon.orchestrator.live import LiveRequest
from antiphon.orchestrator.replica import Replica, ReplicaState, StageState
from antiphon.orchestrator.router import Router
from antiphon.pipeline.detokenize import Detokenizer
from antiphon.stage.messages import Abort, Deliver, Discard, Submit, Used
from antiphon.testing.clock import ManualClock
from antiphon.testing.fake_stage import FakeStage
from routing import STREAMS, drain, outcomes, settle, word_tokenizer

NAMES = STREAMS.stage_names


class Doubled:
    """A router over two replicas of each stage, driven by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.reclaimed: list[str] = []
        self.router = Router(self.clock, reclaim=self.reclaimed.extend, later=self.clock.later)
        self.keys: set[str] = set()
        self.at = {Replica(n, i): self._stage(Replica(n, i)) for n in NAMES for i in (0, 1)}
        self.router.attach(self.at)

    def _stage(self, replica: Replica) -> FakeStage:
        return FakeStage(
            replica.stage,
            lambda _, event, frames: self.router.on_event(replica, event, frames),
            lambda _, why: self.router.on_gone(replica, why),
            keys=self.keys,
        )

    def revive(self, replica: Replica) -> FakeStage:
        """Another process in the place of one that has ended."""
        self.at[replica] = self._stage(replica)
        self.router.on_back(replica)
        return self.at[replica]

    def submit(self, *modalities: str) -> LiveRequest:
        request = OmniRequest(text="hello", modalities=modalities or None)
        path = request.check(STREAMS)
        plan = FlowPlan(
            self.router.new_uid(), STREAMS, path, request, Detokenizer(word_tokenizer())
        )
        return self.router.submit(plan, [[1, 2]], request)

    def acknowledge_all(self) -> None:
        for stage in self.at.values():
            while stage.pending_aborts and not stage.gone:
                stage.acknowledge()


def unit(live: LiveRequest) -> str:
    return f"{live.uid}.0"


def test_requests_go_where_the_fewest_are() -> None:
    pair = Doubled()
    lives = [pair.submit("text") for _ in range(5)]
    found = Counter(live.route.replicas["thinker"].number for live in lives)
    assert sorted(found.values()) == [2, 3]
    busy = lives[0].route.replicas["thinker"]
    for live in lives:
        if live.route.replicas["thinker"] != busy:
            pair.at[live.route.replicas["thinker"]].finish(unit(live))
    assert pair.submit("text").route.replicas["thinker"] != busy
    pair.router.check_integrity()


def test_with_nothing_to_do_they_take_turns() -> None:
    pair = Doubled()
    seen = []
    for _ in range(4):
        live = pair.submit("text")
        seen.append(live.route.replicas["thinker"].number)
        pair.at[live.route.replicas["thinker"]].finish(unit(live))
    assert seen in ([0, 1, 0, 1], [1, 0, 1, 0])


def test_a_request_stays_with_its_replicas() -> None:
    pair = Doubled()
    first, second = pair.submit("audio"), pair.submit("audio")
    for live, other in ((first, second), (second, first)):
        mine = live.route.replicas
        assert set(mine.values()).isdisjoint(other.route.replicas.values())
        thinker = pair.at[mine["thinker"]]
        thinker.ref(unit(live), "speech", end=False)
        (delivered,) = pair.at[mine["talker"]].sent(Deliver)
        assert [uid for uid, _ in delivered.items] == [unit(live)]
        pair.at[mine["talker"]].use(unit(live))
        assert thinker.sent(Used)
        assert not pair.at[other.route.replicas["talker"]].sent(Used)


async def test_only_who_is_bound_to_a_replica_that_ends_fails() -> None:
    """C93: one of two replicas is killed; its requests fail with its name, the others finish."""
    pair = Doubled()
    lives = [pair.submit("text") for _ in range(4)]
    victim = Replica("thinker", 1)
    pair.at[victim].die()
    pair.acknowledge_all()
    for live in lives:
        if live.route.replicas["thinker"] == victim:
            (error,) = outcomes(drain(live))
            assert isinstance(error, StageDiedError)
            assert "'thinker'" in str(error)
        else:
            pair.at[Replica("thinker")].finish(unit(live))
            assert outcomes(drain(live))[0].reply.finish_reason == "stop"
    assert pair.submit("text").route.replicas["thinker"] == Replica("thinker")


async def test_whoever_needs_nothing_more_of_a_stage_outlives_it() -> None:
    """The thinker has written all and sent all on: its end does not stop the voice."""
    pair = Doubled()
    live = pair.submit()
    mine = live.route.replicas
    thinker, talker = pair.at[mine["thinker"]], pair.at[mine["talker"]]
    thinker.tokens(unit(live), 1, finish="stop")
    thinker.ref(unit(live), "speech")
    thinker.die()
    talker.tokens(unit(live), 4, finish="stop")
    talker.ref(unit(live), "codes")
    pair.at[mine["code2wav"]].audio(unit(live), [0.5])
    (outcome,) = outcomes(drain(live))
    assert outcome.reply.text == "one"
    assert outcome.reply.audio is not None
    assert pair.reclaimed == [unit(live)] * 3
    assert pair.keys == set()


async def test_a_payload_that_is_still_owed_ends_the_request() -> None:
    """A stage that has finished may have a payload to send yet, which nobody else has."""
    pair = Doubled()
    live = pair.submit()
    thinker = pair.at[live.route.replicas["thinker"]]
    thinker.tokens(unit(live), 1, finish="stop")
    thinker.ref(unit(live), "speech", end=False)
    thinker.die()
    pair.acknowledge_all()
    assert isinstance(outcomes(drain(live))[-1], StageDiedError)
    assert sorted(pair.reclaimed) == [unit(live)] * 3


async def test_no_replica_left_refuses_and_says_why() -> None:
    pair = Doubled()
    for number in (0, 1):
        pair.at[Replica("talker", number)].die(StageDiedError("it fell"))
    with pytest.raises(StageDiedError, match="stage 'talker' is not running: it fell"):
        pair.submit("audio")
    live = pair.submit("text")  # which does without
    pair.at[live.route.replicas["thinker"]].finish(unit(live))
    pair.revive(Replica("talker", 1))
    assert pair.submit("audio").route.replicas["talker"] == Replica("talker", 1)


async def test_a_new_process_knows_nothing_of_the_old_one() -> None:
    pair = Doubled()
    live = pair.submit("audio")
    mine = live.route.replicas
    pair.at[mine["talker"]].die()
    assert not outcomes(drain(live))  # thinker and code2wav have not acknowledged
    talker = pair.revive(mine["talker"])
    pair.acknowledge_all()
    assert isinstance(outcomes(drain(live))[0], StageDiedError)
    assert talker.commands == []
    pair.router.check_integrity()


async def test_chunks_for_a_replica_that_ends_are_given_back() -> None:
    pair = Doubled()
    live = pair.submit("audio")
    thinker = pair.at[live.route.replicas["thinker"]]
    ref = thinker.ref(unit(live), "speech", end=False)
    pair.at[live.route.replicas["talker"]].die()
    assert thinker.sent(Discard) == [Discard([ref.key])]
    pair.acknowledge_all()
    assert pair.keys == set()


async def test_a_replica_that_drains_gets_nothing_and_says_when_it_is_empty() -> None:
    pair = Doubled()
    first = pair.submit("text")
    drained = first.route.replicas["thinker"]
    drain_task = asyncio.create_task(pair.router.drain(drained))
    await settle()
    assert all(pair.submit("text").route.replicas["thinker"] != drained for _ in range(3))
    assert not drain_task.done()
    pair.at[drained].finish(unit(first))
    await drain_task
    pair.router.rejoin(drained)
    assert pair.submit("text").route.replicas["thinker"] == drained


async def test_a_stage_all_of_whose_replicas_drain_refuses() -> None:
    pair = Doubled()
    for number in (0, 1):
        await pair.router.drain(Replica("thinker", number))
    with pytest.raises(StageDiedError, match="stage 'thinker' takes no requests: it drains"):
        pair.submit("text")
    assert not any(stage.sent(Submit) for stage in pair.at.values())


async def test_an_abort_reaches_the_replicas_of_the_request_alone() -> None:
    pair = Doubled()
    live, _ = pair.submit("audio"), pair.submit("audio")
    abort = asyncio.create_task(pair.router.abort(live))
    await settle()
    told = {replica for replica, stage in pair.at.items() if stage.sent(Abort)}
    assert told == set(live.route.replicas.values())
    pair.acknowledge_all()
    await abort


@pytest.mark.parametrize(
    ("states", "word", "serves"),
    [
        (("ready", "ready"), "ready", True),
        (("ready", "gone"), "degraded", True),
        (("restarting", "gone"), "restarting", False),
        (("gone", "gone"), "gone", False),
        (("draining", "ready"), "degraded", True),
        (("draining",), "draining", False),
        (("asleep",), "asleep", True),
        (("silent", "silent"), "silent", True),
        (("starting",), "starting", False),
    ],
)
def test_a_stage_is_as_its_replicas_are(states: tuple[str, ...], word: str, serves: bool) -> None:
    state = StageState(tuple(ReplicaState(i, s) for i, s in enumerate(states)))  # type: ignore[arg-type]
    assert (state.state, state.serves) == (word, serves)


def test_names() -> None:
    assert [str(Replica("talker")), str(Replica("talker", 1))] == ["talker", "talker/1"]


async def test_payloads_that_cannot_be_removed_concern_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pair = Doubled()

    def reclaim(uids: object) -> None:
        raise OSError("too many open files")

    pair.router._reclaim = reclaim
    lives = [pair.submit("text") for _ in range(6)]
    pair.at[Replica("thinker")].die()
    pair.at[Replica("thinker", 1)].die()
    assert [len(outcomes(drain(live))) for live in lives] == [1] * 6
    assert len(pair.router) == 0
    assert "could not be removed" in caplog.text


async def test_a_drain_ends_when_the_replica_is_told_to_rejoin() -> None:
    pair = Doubled()
    live = pair.submit("text")
    drained = live.route.replicas["thinker"]
    waiting = asyncio.create_task(pair.router.drain(drained))
    await settle()
    pair.router.rejoin(drained)
    with pytest.raises(InvalidRequestError, match="was told to rejoin meanwhile"):
        await waiting
    pair.at[drained].finish(unit(live))
