"""What callers of a soak ask, and what the right answers are."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from antiphon.bench.soak_record import Kind
from antiphon.errors import CallerError, InvalidRequestError
from antiphon.orchestrator.api import OmniRequest, Reply
from antiphon.orchestrator.omni import AsyncOmni
from antiphon.orchestrator.sessions import Sampling
from antiphon.pipeline.topology import Stage, StageKind, Topology

QUESTIONS = (
    "What is the capital of France?",
    "What is water?",
    "Name three rivers in Europe.",
    "Why is the sky blue?",
)
_WEIGHTS = {
    Kind.TEXT: 4,
    Kind.SPEECH: 3,
    Kind.CHAT: 4,
    Kind.SESSION: 3,
    Kind.ABORT: 1,
    Kind.LEAVE: 1,
    Kind.HASTY: 1,
    Kind.BAD: 1,
}
MAX_TOKENS = 16  # of a text


@dataclass(frozen=True, slots=True)
class Way:
    """One way through the pipeline, and the stages on it."""

    entry: str
    modalities: tuple[str, ...]
    stages: tuple[str, ...]

    @property
    def writes(self) -> bool:
        """Whether the answer has a text."""
        return "text" in self.modalities

    @property
    def sounds(self) -> bool:
        """Whether the answer has sound."""
        return "audio" in self.modalities


class Calls:
    """The ways that a pipeline has, and the questions; `references` are filled by `learn`."""

    def __init__(self, topology: Topology, kinds: Collection[Kind] = tuple(Kind)) -> None:
        self._topology = topology
        self._ways = _ways(topology)
        self._kinds = [k for k in _WEIGHTS if k in kinds and self._possible(k)]
        self._sampling = _sampling(topology)
        self.references: dict[tuple[str, str], str] = {}  # texts by entry and question

    def drop(self, kind: Kind) -> None:
        """Nobody does this."""
        self._kinds.remove(kind)

    def has(self, kind: Kind) -> bool:
        """Whether anybody does this."""
        return kind in self._kinds

    def draw(self, draw: random.Random) -> Kind:
        """What the next caller does."""
        return draw.choices(self._kinds, [_WEIGHTS[kind] for kind in self._kinds])[0]

    def way(self, kind: Kind, draw: random.Random) -> Way:
        """One that this kind of call may take."""
        return draw.choice(self._of(kind))

    def request(self, way: Way, question: str, deadline_s: float, label: str) -> OmniRequest:
        """What is asked for."""
        return OmniRequest(
            entry=way.entry,
            text=question,
            modalities=way.modalities,
            sampling=self.sampling(way),
            deadline_s=deadline_s,
            request_id=label,
        )

    def sampling(self, way: Way) -> Sampling:
        """Short texts, and nothing else but the pipeline's own."""
        return {name: self._sampling[name] for name in way.stages if name in self._sampling}

    def bad(self, draw: random.Random, label: str, deadline_s: float) -> OmniRequest:
        """A request that has to be refused."""
        way = draw.choice(self._ways)
        good = self.request(way, QUESTIONS[0], deadline_s, label)
        wrong: tuple[Mapping[str, object], ...] = (
            {"text": " "},
            {"text": "\ud800"},
            {"text": "word " * 200_000},
            {"modalities": ("smell",)},
            {"sampling": {"nobody": {}}},
            {"params": {"nothing": 1}},
            {"deadline_s": -1.0},
            {"n": 0},
        )
        return msgspec.structs.replace(good, **draw.choice(wrong))

    def wrong(self, way: Way, question: str, reply: Reply) -> str | None:
        """What is not right about a whole answer."""
        if way.sounds and (reply.audio is None or not reply.audio.size):
            return "there is no sound"
        expected = self.references.get((way.entry, question))
        if way.writes and expected is not None and reply.text != expected:
            return f"the text is {reply.text!r} in place of {expected!r}"
        return None

    async def learn(self, omni: AsyncOmni) -> None:
        """Ask every question alone, and remember the texts. Raises what a request fails with."""
        for way in self._ways:
            for question in QUESTIONS:
                reply = await omni.generate(self.request(way, question, 300.0, "reference"))
                if way.sounds and (reply.audio is None or not reply.audio.size):
                    raise InvalidRequestError(f"entry {way.entry} gives no sound; nothing to soak")
                if way.writes:
                    self.references.setdefault((way.entry, question), reply.text)
                if not way.writes:
                    break  # there is nothing to remember

    async def learn_sessions(self, omni: AsyncOmni) -> None:
        """See whether there can be sessions; if not, nobody opens one."""
        if not self.has(Kind.SESSION):
            return
        way = self._of(Kind.SESSION)[0]
        try:
            async with omni.session(entry=way.entry, modalities=way.modalities):
                pass
        except CallerError:
            self.drop(Kind.SESSION)

    # --- parts --------------------------------------------------------------------------------

    def _possible(self, kind: Kind) -> bool:
        return bool(self._of(kind))

    def _of(self, kind: Kind) -> Sequence[Way]:
        match kind:
            case Kind.TEXT:
                return [way for way in self._ways if way.modalities == ("text",)]
            case Kind.SPEECH:
                return [way for way in self._ways if way.sounds and not way.writes]
            case Kind.CHAT:
                return [way for way in self._ways if way.writes and len(way.modalities) > 1]
            case Kind.SESSION:
                return [way for way in self._ways if way.writes]
            case _:
                return self._ways


def _ways(topology: Topology) -> list[Way]:
    """Of a text, and in all that the entry gives or in text alone."""
    found = []
    for entry in topology.entries:
        if "text" not in entry.inputs:
            continue
        given = tuple(m for m in topology.outputs_from(entry.name) if m != "transcript")
        for modalities in {given, ("text",) if "text" in given else given}:
            path = topology.path_from(entry.name, modalities, heard=False)
            found.append(Way(entry.name, modalities, tuple(stage.name for stage in path)))
    return sorted(found, key=lambda way: (way.entry, way.modalities))


def _sampling(topology: Topology) -> Sampling:
    return {stage.name: {"max_tokens": MAX_TOKENS} for stage in topology.stages if _writes(stage)}


def _writes(stage: Stage) -> bool:
    return stage.kind is StageKind.AR and stage.output == "text"
