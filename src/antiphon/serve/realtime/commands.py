"""What has to be done about the pipeline because of what a caller said."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.orchestrator.api import OmniRequest
from antiphon.pipeline.audio import AudioClip
from antiphon.serve.realtime.answer import Answer
from antiphon.serve.realtime.history import Item, Part
from antiphon.serve.realtime.options import HEARING


@dataclass(frozen=True, slots=True)
class Begin:
    """Have the pipeline answer; `Conversation.finished` at the end, whatever comes."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the answer on every stage, and only then take the caller's next event."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class Listen:
    """Have a sound of a message written down."""

    item: Item
    part: Part
    clip: AudioClip
    announced: bool  # the caller wants to know what is heard

    def request(self) -> OmniRequest:
        return OmniRequest(entry=HEARING, audio=[self.clip])


@dataclass(frozen=True, slots=True)
class Forget:
    """Nobody needs to know any more what is said in this message."""

    item: Item


Command = Begin | Cancel | Listen | Forget
