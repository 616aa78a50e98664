"""A router over fake stages: what the tests of the orchestrator drive."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from antiphon.errors import AntiphonError
from antiphon.orchestrator.api import AudioChunk, Finished, OmniEvent, OmniRequest, Reply, TextDelta
from antiphon.orchestrator.flow import FlowPlan
from antiphon.orchestrator.router import LiveRequest, Router
from antiphon.pipeline.detokenize import Detokenizer
from antiphon.pipeline.topology import Topology
from antiphon.testing.clock import ManualClock
from antiphon.testing.fake_stage import Answer, FakeStage
from sample_pipeline import TOPOLOGY

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven")


def word_tokenizer() -> Tokenizer:
    """Token n is a word; words are joined by spaces."""
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    return Tokenizer(WordLevel(vocabulary, unk_token="zero"))  # noqa: S106  no password


class Routing:
    """A router, its stages, and the keys that their connector holds."""

    def __init__(
        self, topology: Topology = TOPOLOGY, answers: Mapping[str, Answer] | None = None
    ) -> None:
        self.topology = topology
        self.clock = ManualClock()
        self.router = Router(self.clock)
        self.keys: set[str] = set()
        self.stages = {
            name: FakeStage(
                name,
                self.router.on_event,
                self.router.on_gone,
                keys=self.keys,
                answer=None if answers is None else answers[name],
            )
            for name in topology.stage_names
        }
        self.router.attach(self.stages)

    def __getitem__(self, stage: str) -> FakeStage:
        return self.stages[stage]

    def submit(
        self,
        *,
        entry: str = "chat",
        modalities: tuple[str, ...] = ("text", "audio"),
        prompts: list[list[int]] | None = None,
        **given: Any,
    ) -> LiveRequest:
        """Start a request; `given` are OmniRequest's fields."""
        request = OmniRequest(entry=entry, text="hello", modalities=modalities, **given)
        path = request.check(self.topology)
        text = Detokenizer(word_tokenizer()) if any(s.output == "text" for s in path) else None
        plan = FlowPlan(self.router.new_uid(), self.topology, path, request, text)
        return self.router.submit(plan, [[1, 2, 3]] if prompts is None else prompts, request)

    def acknowledge_all(self) -> None:
        for stage in self.stages.values():
            while stage.pending_aborts and not stage.gone:
                stage.acknowledge()

    def assert_empty(self) -> None:
        """Nothing is alive anywhere, and no payload is left (I2)."""
        self.router.check_integrity()
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


def outcomes(events: list[OmniEvent | AntiphonError]) -> list[Finished | AntiphonError]:
    return [event for event in events if isinstance(event, Finished | AntiphonError)]


def reply_of(events: list[OmniEvent | AntiphonError]) -> Reply:
    """The reply of a request that ended well."""
    (outcome,) = outcomes(events)
    assert isinstance(outcome, Finished)
    return outcome.reply


async def settle() -> None:
    """Let everything run that is ready to."""
    for _ in range(20):
        await asyncio.sleep(0)
