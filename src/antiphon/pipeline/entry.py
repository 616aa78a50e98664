"""How a caller's request becomes prompts for the stage it enters at. Neither vllm nor torch is
imported here.
"""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

import msgspec


class Message(msgspec.Struct, frozen=True):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class EntryRequest(msgspec.Struct, frozen=True):
    """What the caller gave: a text, or the messages of a conversation (then `text` is empty)."""

    text: str = ""
    messages: tuple[Message, ...] = ()


class EntryAdapter(Protocol):
    """Turns a request into prompts. Made once with the folder of the entry stage's checkpoint."""

    def prompts(self, request: EntryRequest) -> list[list[int]]:
        """Token ids, one list per part; parts are served in this order.

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
