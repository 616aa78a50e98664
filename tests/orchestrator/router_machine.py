"""Requests in whatever order things can happen to them, for hypothesis to find a bad one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from antiphon.errors import (
    AntiphonError,
    DuplicateRequestError,
    PayloadError,
    ShutdownError,
    StageDiedError,
)
from antiphon.orchestrator.api import AudioChunk, Finished
from antiphon.orchestrator.live import LiveRequest
from antiphon.pipeline.topology import EdgeMode
from antiphon.testing.fake_stage import FakeStage
from routing import Routing, drain
from sample_pipeline import TOPOLOGY

NAMES = ("thinker", "talker", "code2wav")
STOPS = st.sampled_from([(), ("one one",), ("one two", "e one one")])  # every word is one
EDGES = {"thinker": "speech", "talker": "codes"}


@dataclass
class Seen:
    """What the caller of one request has been given."""

    live: LiveRequest
    outcomes: list[Finished | AntiphonError] = field(default_factory=list)
    parts: list[int] = field(default_factory=list)
    reasons: set[type] = field(default_factory=set)  # what has been done to it that may end it


class RouterMachine(RuleBasedStateMachine):
    """Three stages driven by hand; a producer may send its payload before or after it finishes."""

    topology = TOPOLOGY
    outputs = st.just(1)  # how many of the last stage a request asks for

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.routing = Routing(self.topology)
        self.requests: list[Seen] = []
        self.aborts: list[asyncio.Task[None]] = []
        # (stage, uid, edge, epoch) that may still send
        self.owed: set[tuple[str, str, str, int]] = set()
        self.done: set[tuple[str, str, int]] = set()

    # --- helpers ------------------------------------------------------------------------------

    def running(self, stage: FakeStage) -> list[str]:
        """What may finish by itself; a session never does."""
        return sorted(stage.live.keys() - stage.waiting - stage.sessions.keys())

    def sound(self, uid: str) -> list[float]:
        """The audio of a unit."""
        return [0.5]

    def note_owed(self) -> None:
        for name, edge in EDGES.items():
            for uid, submit in self.routing[name].live.items():
                epoch = self.routing[name].epoch(uid)
                if edge in submit.edges and (name, uid, epoch) not in self.done:
                    self.owed.add((name, uid, edge, epoch))

    def may_go_on(self, edge: str) -> bool:
        """Whether the edge may carry more than one payload of a request."""
        declared = next(e for e in self.topology.edges if e.name == edge)
        return declared.split or declared.mode is EdgeMode.STREAM

    # --- rules --------------------------------------------------------------------------------

    @rule(
        kind=st.sampled_from(["text", "audio", "both", "speech"]),
        parts=st.integers(1, 3),
        label=st.sampled_from([None, "a", "b"]),
        data=st.data(),
    )
    def submit(self, kind: str, parts: int, label: str | None, data: st.DataObject) -> None:
        modalities = {"text": ("text",), "both": ("text", "audio")}.get(kind, ("audio",))
        entry = "speech" if kind == "speech" else "chat"
        prompts = [[1]] * (parts if kind == "speech" else 1)
        n = 1 if kind == "text" else data.draw(self.outputs)
        stop = data.draw(STOPS) if kind == "text" else ()
        needed = {"text": NAMES[:1], "speech": NAMES[1:]}.get(kind, NAMES)
        taken = label is not None and self.routing.router.find(label) is not None
        dead = any(self.routing[name].gone for name in needed)
        try:
            live = self.routing.submit(
                entry=entry,
                modalities=modalities,
                prompts=prompts,
                request_id=label,
                n=n,
                stop=stop,
            )
        except DuplicateRequestError:
            assert taken
        except StageDiedError:
            assert dead
        else:
            assert not taken
            assert not dead
            self.requests.append(Seen(live))

    @rule(stage=st.sampled_from(NAMES), data=st.data())
    def tokens(self, stage: str, data: st.DataObject) -> None:
        if uids := self.running(self.routing[stage]):
            self.routing[stage].tokens(data.draw(st.sampled_from(uids)), 1)

    @rule(stage=st.sampled_from(NAMES), data=st.data(), reason=st.sampled_from(["stop", "length"]))
    def finish(self, stage: str, data: st.DataObject, reason: str) -> None:
        if uids := self.running(self.routing[stage]):
            uid = data.draw(st.sampled_from(uids))
            if stage == "code2wav" and data.draw(st.booleans()):
                self.routing[stage].audio(uid, self.sound(uid), finish=reason)
            else:
                self.routing[stage].finish(uid, reason)

    @rule(data=st.data(), end=st.booleans(), empty=st.booleans())
    def payload(self, data: st.DataObject, end: bool, empty: bool) -> None:
        if not self.owed:
            return
        name, uid, edge, epoch = data.draw(st.sampled_from(sorted(self.owed)))
        last = end or not self.may_go_on(edge)
        if last:
            self.owed.remove((name, uid, edge, epoch))
            self.done.add((name, uid, epoch))
        self.routing[name].ref(uid, edge, end=last, empty=empty and last, epoch=epoch)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), finish_first=st.booleans())
    def carry_through(self, data: st.DataObject, finish_first: bool) -> None:
        """Everything that is left of one request happens without a fault."""
        index = data.draw(st.sampled_from(range(len(self.requests))))
        self.carry(f"{self.requests[index].live.uid}.", finish_first)

    def carry(self, prefix: str, finish_first: bool) -> None:
        """What is left of the units whose names begin so."""
        for name in NAMES:
            self.note_owed()
            uids = [uid for uid in self.running(self.routing[name]) if uid.startswith(prefix)]
            owed = [
                key for key in sorted(self.owed) if key[0] == name and key[1].startswith(prefix)
            ]
            if finish_first:
                self.finish_all(name, uids)
            self.send_owed(owed)
            if not finish_first:
                self.finish_all(name, uids)

    def send_owed(self, owed: list[tuple[str, str, str, int]]) -> None:
        for name, uid, edge, epoch in owed:
            self.owed.remove((name, uid, edge, epoch))
            self.done.add((name, uid, epoch))
            self.routing[name].ref(uid, edge, epoch=epoch)

    def finish_all(self, name: str, uids: list[str]) -> None:
        for uid in uids:
            if name == "code2wav":
                self.routing[name].audio(uid, self.sound(uid))
            else:
                self.routing[name].tokens(uid, 1, finish="stop")

    @rule(stage=st.sampled_from(NAMES), data=st.data())
    def error(self, stage: str, data: st.DataObject) -> None:
        if uids := sorted(self.routing[stage].live):
            uid = data.draw(st.sampled_from(uids))
            self.mark(uid, PayloadError)
            self.routing[stage].fail(uid, PayloadError("corrupt"))

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        seen = data.draw(st.sampled_from(range(len(self.requests))))
        request = self.requests[seen]
        request.reasons.add(Finished)
        self.aborts.append(self.loop.create_task(self.routing.router.abort(request.live)))
        self.loop.run_until_complete(asyncio.sleep(0))

    @rule(stage=st.sampled_from(NAMES))
    def acknowledge(self, stage: str) -> None:
        self.routing[stage].acknowledge()

    @rule(stage=st.sampled_from(NAMES), really=st.sampled_from([False] * 5 + [True]))
    def death(self, stage: str, really: bool) -> None:
        if really:
            self.mark_death(stage)
            self.routing[stage].die()

    def mark_death(self, stage: str) -> None:
        for seen in self.requests:
            if stage in seen.live.flow.units:
                seen.reasons.add(StageDiedError)

    def mark(self, uid: str, reason: type) -> None:
        for seen in self.requests:
            if uid.startswith(f"{seen.live.uid}."):
                seen.reasons.add(reason)

    # --- what always holds --------------------------------------------------------------------

    @invariant()
    def outcomes_are_single_and_last(self) -> None:
        self.note_owed()
        self.routing.router.check_integrity()
        for seen in self.requests:
            for event in drain(seen.live):
                assert not seen.outcomes, "something came after the outcome"
                if isinstance(event, Finished | AntiphonError):
                    seen.outcomes.append(event)
                elif isinstance(event, AudioChunk):
                    seen.parts.append(event.part)
            assert seen.parts == sorted(set(seen.parts))
            for outcome in seen.outcomes:
                if isinstance(outcome, AntiphonError):
                    assert type(outcome) in seen.reasons
                elif outcome.reply.finish_reason == "abort":
                    assert Finished in seen.reasons
                else:
                    stops = seen.live.flow.plan.request.stop
                    assert not any(stop in outcome.reply.text for stop in stops)

    def teardown(self) -> None:
        try:
            self.close()
        finally:
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    def close(self) -> None:
        for seen in self.requests:
            seen.reasons.add(ShutdownError)
        closing = self.loop.create_task(self.routing.router.close())
        self.loop.run_until_complete(asyncio.sleep(0))
        self.routing.acknowledge_all()
        self.loop.run_until_complete(asyncio.gather(closing, *self.aborts))
        self.outcomes_are_single_and_last()
        # The worker's last answer may come after the acknowledgement.
        self.send_owed(sorted(self.owed))
        assert all(len(seen.outcomes) == 1 for seen in self.requests)
        assert len(self.routing.router) == 0
        # What a dead stage had stored ends with the run, not with its requests.
        gone = {name for name in NAMES if self.routing[name].gone}
        assert {key for key in self.routing.keys if key.split("/")[0] not in gone} == set()
        if not gone:
            self.routing.assert_empty()
