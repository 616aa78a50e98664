"""Sessions beside requests, in whatever order things can happen to them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis.stateful import invariant, precondition, rule
from router_machine import NAMES, RouterMachine

from antiphon.errors import (
    DuplicateRequestError,
    InvalidRequestError,
    ShutdownError,
    StageDiedError,
)
from antiphon.orchestrator.api import AudioChunk, Finished, TextDelta
from antiphon.orchestrator.segments import MAX_SEGMENTS
from antiphon.orchestrator.sessions import Session
from antiphon.orchestrator.uids import root_of, segment_of
from routing import WORDS, Reader, session_uid

SCALE = 64  # audio of segment n has the value n / SCALE


@dataclass
class Talk:
    """A session, and what its caller has said and been given."""

    session: Session
    spoken: bool
    reader: Reader
    unit: str = ""  # the uid of its own unit, once it has one
    said: int = 0  # segments
    fence: int = 0  # segments below it have been interrupted
    closed: bool = False
    ends: dict[int, str] = field(default_factory=dict)  # finish reasons
    parts: dict[int, int] = field(default_factory=dict)  # of the last audio, by segment
    reasons: set[type] = field(default_factory=set)  # what may have failed it

    @property
    def prefix(self) -> str:
        """What the names of its segments' units begin with."""
        return f"{root_of(self.unit)}t"


class SessionMachine(RouterMachine):
    """Text and audio say which segment they were made for."""

    def __init__(self) -> None:
        super().__init__()
        self.talks: list[Talk] = []

    def sound(self, uid: str) -> list[float]:
        return [max(0, segment_of(root_of(uid))) / SCALE]

    def talk(self, data: st.DataObject) -> Talk:
        return self.talks[data.draw(st.sampled_from(range(len(self.talks))))]

    def writing(self, talk: Talk) -> bool:
        session = self.routing["thinker"].sessions.get(talk.unit)
        return session is not None and not session.resting

    # --- what callers do ----------------------------------------------------------------------

    @precondition(lambda self: len(self.talks) < 3)
    @rule(spoken=st.booleans(), label=st.sampled_from([None, "a"]))
    def open(self, spoken: bool, label: str | None) -> None:
        session = self.routing.session(
            modalities=("text", "audio") if spoken else ("text",), request_id=label
        )
        taken = label is not None and self.routing.router.find(label) is not None
        dead = any(self.routing[name].gone for name in (NAMES if spoken else NAMES[:1]))
        try:
            self.loop.run_until_complete(session.__aenter__())
        except DuplicateRequestError:
            assert taken
        except StageDiedError:
            assert dead
        else:
            assert not taken
            assert not dead
            self.talks.append(Talk(session, spoken, Reader(session)))

    @precondition(lambda self: self.talks)
    @rule(data=st.data(), keep=st.sampled_from([None, 2]))
    def append(self, data: st.DataObject, keep: int | None) -> None:
        talk = self.talk(data)
        self.said(talk, self.loop.create_task(talk.session.append("one", keep_tokens=keep)))

    @precondition(lambda self: self.talks)
    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        """Acknowledged by every stage as soon as it can be."""
        talk = self.talk(data)
        before = talk.said
        task = self.loop.create_task(talk.session.replace("one"))
        while not task.done():
            self.loop.run_until_complete(asyncio.wait([task], timeout=0.001))
            self.routing.acknowledge_all()
        self.said(talk, task)
        if talk.said > before:
            talk.fence = max(talk.fence, before)

    def said(self, talk: Talk, task: asyncio.Task[int]) -> None:
        try:
            number = self.loop.run_until_complete(task)
        except InvalidRequestError:
            assert talk.closed or talk.said - len(talk.ends) >= MAX_SEGMENTS
        except tuple(talk.reasons):
            pass
        else:
            assert number == talk.said
            talk.said += 1
            talk.unit = talk.unit or session_uid(self.routing)

    @precondition(lambda self: self.talks)
    @rule(data=st.data())
    def interrupt(self, data: st.DataObject) -> None:
        talk = self.talk(data)
        talk.fence = talk.said
        self.aborts.append(self.loop.create_task(talk.session.interrupt()))
        self.loop.run_until_complete(asyncio.sleep(0))

    @precondition(lambda self: self.talks)
    @rule(data=st.data(), really=st.sampled_from([False, False, True]))
    def close_session(self, data: st.DataObject, really: bool) -> None:
        if really:
            talk = self.talk(data)
            talk.closed = True
            self.aborts.append(self.loop.create_task(talk.session.close()))
            self.loop.run_until_complete(asyncio.sleep(0))

    @precondition(lambda self: self.talks)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        self.read_all(self.talk(data))

    # --- what stages do -----------------------------------------------------------------------

    @precondition(lambda self: self.talks)
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        talk = self.talk(data)
        if self.writing(talk):
            epoch = self.routing["thinker"].epoch(talk.unit)
            self.routing["thinker"].tokens(talk.unit, epoch % len(WORDS))

    @precondition(lambda self: self.talks)
    @rule(data=st.data(), reason=st.sampled_from(["stop", "length"]))
    def end_segment(self, data: st.DataObject, reason: str) -> None:
        talk = self.talk(data)
        if self.writing(talk):
            self.note_owed()
            self.routing["thinker"].end_segment(talk.unit, reason)

    @precondition(lambda self: self.talks)
    @rule(data=st.data(), finish_first=st.booleans())
    def carry_on(self, data: st.DataObject, finish_first: bool) -> None:
        """All segments so far happen to their ends without a fault."""
        talk = self.talk(data)
        for _ in range(talk.said):
            if finish_first and self.writing(talk):
                self.note_owed()
                self.routing["thinker"].end_segment(talk.unit)
            self.note_owed()
            self.send_owed([key for key in sorted(self.owed) if key[1] == talk.unit])
            if not finish_first and self.writing(talk):
                self.routing["thinker"].end_segment(talk.unit)
            if talk.unit:
                self.carry(talk.prefix, finish_first)

    @precondition(lambda self: self.talks)
    @rule(data=st.data())
    def late(self, data: st.DataObject) -> None:
        """Something of a segment that is over, or is being ended."""
        talk = self.talk(data)
        over = sorted(set(talk.ends) | set(range(talk.fence)))
        if talk.unit and over:
            epoch = data.draw(st.sampled_from(over))
            self.routing["thinker"].tokens(talk.unit, epoch % len(WORDS), epoch=epoch)
            if (talk.unit, epoch) not in {(uid, e) for _, uid, _, e in self.owed}:
                self.routing["thinker"].ref(talk.unit, "speech", epoch=epoch, end=False)

    def mark(self, uid: str, reason: type) -> None:
        super().mark(uid, reason)
        for talk in self.talks:
            if talk.unit and (uid == talk.unit or uid.startswith(talk.prefix)):
                talk.reasons.add(reason)

    def mark_death(self, stage: str) -> None:
        super().mark_death(stage)
        for talk in self.talks:
            if talk.spoken or stage == "thinker":
                talk.reasons.add(StageDiedError)

    # --- what always holds --------------------------------------------------------------------

    def read_all(self, talk: Talk) -> None:
        for event in self.loop.run_until_complete(talk.reader.new()):
            number = event.segment
            assert number not in talk.ends, "something came after a segment's end"
            match event.event:
                case TextDelta(text):
                    assert number >= talk.fence, "text of an interrupted segment"
                    assert set(text.split()) == {WORDS[number % len(WORDS)]}
                case AudioChunk(samples, _, part):
                    assert number >= talk.fence, "audio of an interrupted segment"
                    assert set(samples.tolist()) == {number / SCALE}
                    assert part >= talk.parts.get(number, 0)
                    talk.parts[number] = part
                case Finished(reply):
                    talk.ends[number] = reply.finish_reason
                    assert self.may_end(talk, number, reply.finish_reason)

    def may_end(self, talk: Talk, number: int, reason: str) -> bool:
        match reason:
            case "interrupt":
                return number < talk.fence
            case "abort":
                return talk.closed
        return reason in ("stop", "length")

    @invariant()
    def sessions_fail_for_a_reason(self) -> None:
        for talk in self.talks:
            if talk.reader.error is not None:
                assert type(talk.reader.error) in talk.reasons

    def close(self) -> None:
        for talk in self.talks:
            talk.reasons.add(ShutdownError)
        super().close()
        for talk in self.talks:
            self.read_all(talk)
            assert talk.reader.ended
            assert (talk.reader.error is None) <= (len(talk.ends) == talk.said)
        self.sessions_fail_for_a_reason()
