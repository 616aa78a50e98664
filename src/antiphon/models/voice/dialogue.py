"""A conversation as the thinker's prompt, and on its way there past what is heard.

Neither torch nor vllm is imported here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from antiphon.errors import AdapterError, EmptyInputError, InputTooLongError
from antiphon.models.chat import ChatFormat, Turn
from antiphon.models.voice.limits import THINKER_CONTEXT, THINKER_REPLY
from antiphon.pipeline.entry import Message


class HeardMessage(msgspec.Struct, frozen=True):
    """A message whose sounds are `windows` windows, which are written down elsewhere."""

    role: Literal["system", "user", "assistant"]
    content: str
    windows: int = 0


class Conversation(msgspec.Struct, frozen=True):
    """Messages without their sounds, as they cross to the thinker beside the transcripts."""

    messages: tuple[HeardMessage, ...]

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Conversation:
        """What `to_json` wrote. Raises AdapterError for anything else."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise AdapterError(f"the payload holds no conversation: {error}") from error

    def with_transcripts(self, transcripts: Sequence[str]) -> list[Message]:
        """The messages, each with what its windows say before its text.

        Raises AdapterError if there are more or fewer transcripts than windows.
        """
        if len(transcripts) != sum(message.windows for message in self.messages):
            raise AdapterError(
                f"{len(transcripts)} transcripts have come for"
                f" {sum(message.windows for message in self.messages)} windows"
            )
        left = iter(transcripts)
        return [Message(message.role, _said(message, left)) for message in self.messages]


def _said(message: HeardMessage, transcripts: Iterator[str]) -> str:
    heard = (next(transcripts).strip() for _ in range(message.windows))
    spoken = " ".join(text for text in heard if text)
    return "\n".join(text for text in (spoken, message.content.strip()) if text)


def thinker_prompt(chat: ChatFormat, messages: Sequence[Message]) -> list[int]:
    """The conversation, and the beginning of its answer, in the model's own chat template.

    Raises EmptyInputError if the last message says nothing, InputTooLongError if there is no room
    for an answer, InvalidRequestError if the template refuses the conversation.
    """
    if not messages[-1].content.strip():
        raise EmptyInputError("There is no text to answer: give one.")
    ids = chat.prompt([turn_of(message) for message in messages])
    limit = THINKER_CONTEXT - THINKER_REPLY
    if len(ids) > limit:
        raise InputTooLongError(
            f"The conversation takes {len(ids)} tokens; at most {limit} leave room for an answer:"
            " shorten it."
        )
    return ids


def turn_of(message: Message) -> Turn:
    """Without surrounding space, which the template's maker strips."""
    return {"role": message.role, "content": message.content.strip()}
