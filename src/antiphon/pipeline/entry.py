"""How a caller's request becomes prompts for the stage it enters at. Neither vllm nor torch is
imported here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

import msgspec

from antiphon.core.options import Scalar
from antiphon.pipeline.audio import AudioClip


class Message(msgspec.Struct, frozen=True):
    """One turn of a conversation. Its clips come before its text; only a user has any."""

    role: Literal["system", "user", "assistant"]
    content: str
    audio: tuple[AudioClip, ...] = ()


class EntryRequest(msgspec.Struct, frozen=True):
    """What the caller gave: a text, or the messages of a conversation (then `text` is empty).

    `audio` belongs to the text, as a message's to the message; there is none where the entry does
    not take it (`Entry.inputs`). `params` are for the pipeline's models; an adapter that knows what
    they may be checks them, so that a mistake is told before any stage works.
    """

    text: str = ""
    messages: tuple[Message, ...] = ()
    audio: tuple[AudioClip, ...] = ()
    params: Mapping[str, Scalar] = {}


class Prompt(msgspec.Struct, frozen=True):
    """What a stage is given: token ids, and the clips that belong to them.

    A clip stands in `token_ids` as the one token that the model's processor puts it in place of; so
    there are as many of these as clips, in the clips' order. A model with an encoder of its own for
    sound (Whisper) has one clip and no token for it. `params` are what the stage's adapters are
    told of this prompt, beside the request's own.
    """

    token_ids: list[int]
    audio: tuple[AudioClip, ...] = ()
    params: Mapping[str, Scalar] = {}


AnyPrompt = list[int] | Prompt


class EntryAdapter(Protocol):
    """Turns a request into prompts. Made once with the folder of the entry stage's checkpoint."""

    def prompts(self, request: EntryRequest) -> Sequence[AnyPrompt]:
        """One prompt per part, token ids alone or a `Prompt`; parts are served in this order.

        Raises EmptyInputError if there is nothing to answer or to speak, InputTooLongError if it
        does not fit the model's length.
        """
        ...


@runtime_checkable
class SessionEntryAdapter(EntryAdapter, Protocol):
    """An adapter whose conversations can go on where an answer ended."""

    def continuation(self, text: str) -> list[int]:
        """Token ids that follow an answer when the caller says `text` next.

        The answer's last sampled token is not part of the model's history (vLLM discards it), so
        the ids begin by closing the answer. Raises EmptyInputError if there is nothing to answer.
        """
        ...
