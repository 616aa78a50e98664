"""A router over fake stages: what the tests of the orchestrator drive."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

import checked
from antiphon.errors import AntiphonError
from antiphon.orchestrator.api import (
    AudioChunk,
    Finished,
    ImageChunk,
    OmniEvent,
    OmniRequest,
    Reply,
    SessionEvent,
    TextDelta,
)
from antiphon.orchestrator.clients import Frames
from antiphon.orchestrator.flow import FlowPlan
from antiphon.orchestrator.live import LiveRequest
from antiphon.orchestrator.replica import Replica
from antiphon.orchestrator.router import Router
from antiphon.orchestrator.segments import LiveSession, SessionPlan
from antiphon.orchestrator.sessions import Session
from antiphon.orchestrator.uids import root_of, segment_root, unit_uid
from antiphon.pipeline.detokenize import Detokenizer
from antiphon.pipeline.topology import EdgeMode, Stage, Topology
from antiphon.stage.messages import Command, Event, Submit
from antiphon.testing.clock import ManualClock
from antiphon.testing.fake_stage import Answer, FakeStage
from sample_pipeline import TOPOLOGY

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven")


def word_tokenizer() -> Tokenizer:
    """Token n is a word; words are joined by spaces."""
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    return Tokenizer(WordLevel(vocabulary, unk_token="zero"))  # noqa: S106  no password


# The same pipeline with every edge a stream: talker and vocoder run while the thinker writes.
STREAMS = replace(
    TOPOLOGY,
    edges=tuple(replace(e, mode=EdgeMode.STREAM, split=False) for e in TOPOLOGY.edges),
)


class Words:
    """A session's intake: ids of words, after 0 where a conversation begins and 7 later on."""

    def opening(self, request: OmniRequest, path: Sequence[Stage]) -> list[int]:
        said = [message["content"] for message in request.conversation()]
        return [0, *(WORDS.index(word) for text in said for word in text.split())]

    def continuation(self, request: OmniRequest, path: Sequence[Stage]) -> list[int]:
        return [7, *(WORDS.index(word) for word in request.text.split())]

    def detokenizer(self, request: OmniRequest, path: Sequence[Stage]) -> Detokenizer | None:
        return Detokenizer(word_tokenizer())


class Routing:
    """A router, its stages, and the keys that their connector holds."""

    def __init__(
        self, topology: Topology = TOPOLOGY, answers: Mapping[str, Answer] | None = None
    ) -> None:
        self.topology = topology
        self.clock = ManualClock()
        self.router = Router(self.clock, later=self.clock.later)
        self.keys: set[str] = set()
        self.stages = {
            name: FakeStage(
                name,
                self._on_event,
                self._on_gone,
                keys=self.keys,
                answer=None if answers is None else answers[name],
            )
            for name in topology.stage_names
        }
        self.router.attach({Replica(name): stage for name, stage in self.stages.items()})
        checked.checked(self)

    def _on_event(self, stage: str, event: Event, frames: Frames) -> None:
        self.router.on_event(Replica(stage), event, frames)

    def _on_gone(self, stage: str, why: AntiphonError) -> None:
        self.router.on_gone(Replica(stage), why)

    def __getitem__(self, stage: str) -> FakeStage:
        return self.stages[stage]

    def submit(
        self,
        *,
        entry: str = "chat",
        modalities: tuple[str, ...] | None = None,
        prompts: list[list[int]] | None = None,
        **given: Any,
    ) -> LiveRequest:
        """Start a request; `given` are OmniRequest's fields."""
        request = OmniRequest(entry=entry, text="hello", modalities=modalities, **given)
        path = request.check(self.topology)
        text = Detokenizer(word_tokenizer()) if any(s.output == "text" for s in path) else None
        plan = FlowPlan(self.router.new_uid(), self.topology, path, request, text)
        return self.router.submit(plan, [[1, 2, 3]] if prompts is None else prompts, request)

    def session(self, **given: Any) -> Session:
        """A session; `given` are OmniRequest's fields."""

        def enter(request: OmniRequest) -> tuple[LiveSession, Words]:
            path = request.check_options(self.topology)
            plan = SessionPlan(self.router.new_uid(), request.request_id, self.topology, path)
            return self.router.open_session(plan), Words()

        return Session(OmniRequest(**given), enter)

    @contextlib.asynccontextmanager
    async def conversation(self, **given: Any) -> AsyncIterator[Session]:
        """An open session, which is closed in the end; every stage acknowledges that."""
        session = self.session(**given)
        await session.__aenter__()
        try:
            yield session
        finally:
            closing = asyncio.create_task(session.close())
            await settle()
            self.acknowledge_all()
            await closing

    def acknowledge_all(self) -> None:
        for stage in self.stages.values():
            while (stage.pending_interrupts or stage.pending_aborts) and not stage.gone:
                stage.acknowledge()

    def check_integrity(self) -> None:
        """Raise AssertionError if anybody's tables disagree."""
        self.router.check_integrity()
        for stage in self.stages.values():
            stage.check_integrity()

    def assert_empty(self) -> None:
        """Nothing is alive anywhere, no payload is left (I2), and every producer knows it."""
        for stage in self.stages.values():
            stage.report()
        self.check_integrity()
        assert self.router.chunks_under_way == 0
        assert all(stage.gone or not stage.store.outstanding for stage in self.stages.values())
        assert len(self.router) == 0
        assert self.keys == set()
        assert all(not stage.live for stage in self.stages.values())


def uid(live: LiveRequest, part: int = 0) -> str:
    """The uid of one part of a request."""
    return f"{live.uid}.{part}"


def drain(live: LiveRequest) -> list[OmniEvent | AntiphonError]:
    """Every event so far."""
    found = []
    while not live.events.empty():
        found.append(live.events.get_nowait())
    return found


def text_of(events: list[OmniEvent | AntiphonError]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def parts_of(events: list[OmniEvent | AntiphonError]) -> list[int]:
    """The parts whose audio was handed out, in that order."""
    return [event.part for event in events if isinstance(event, AudioChunk)]


def picture(shade: int, height: int = 2, width: int = 3) -> np.ndarray:
    """A picture of one grey."""
    return np.full((height, width, 3), shade, np.uint8)


def pictures_of(events: list[OmniEvent | AntiphonError]) -> dict[int, int]:
    """The shade of each picture that was handed out, by index, in that order."""
    chunks = [event for event in events if isinstance(event, ImageChunk)]
    return {chunk.index: int(chunk.image[0, 0, 0]) for chunk in chunks}


def outcomes(events: list[OmniEvent | AntiphonError]) -> list[Finished | AntiphonError]:
    return [event for event in events if isinstance(event, Finished | AntiphonError)]


def reply_of(events: list[OmniEvent | AntiphonError]) -> Reply:
    """The reply of a request that ended well."""
    (outcome,) = outcomes(events)
    assert isinstance(outcome, Finished)
    return outcome.reply


def session_uid(routing: Routing, stage: str = "thinker") -> str:
    """The uid of the newest session's own unit."""
    return [submit.uid for submit in routing[stage].sent(Submit) if submit.session][-1]


def segment_uid(session: str, segment: int, part: int = 0) -> str:
    """The uid of a segment's unit at a later stage; `session` is the uid of the session's own."""
    return unit_uid(segment_root(root_of(session), segment), part)


class Reader:
    """Who reads a session, when a test says so."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.error: AntiphonError | None = None
        self.ended = False

    async def new(self) -> list[SessionEvent]:
        """Every event that is there now; an error and the end are noted."""
        found: list[SessionEvent] = []
        while not self.ended:
            reading = asyncio.ensure_future(anext(self._session))
            await asyncio.sleep(0)
            if not reading.done():
                reading.cancel()
                break
            try:
                found.append(reading.result())
            except StopAsyncIteration:
                self.ended = True
            except AntiphonError as error:
                assert self.error is None, "the session failed twice"
                self.error = error
        return found


async def told(stage: FakeStage, kind: type[Command]) -> None:
    """Wait until the stage has been sent a command of this kind."""
    heard = asyncio.Event()
    if stage.sent(kind):
        heard.set()
    stage.on_command = lambda command: isinstance(command, kind) and heard.set()
    await heard.wait()


async def settle() -> None:
    """Let everything run that is ready to."""
    for _ in range(20):
        await asyncio.sleep(0)
