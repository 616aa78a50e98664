"""The two ways into the `voice` pipeline: a conversation enters at the thinker, a text to be
spoken at the talker.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from antiphon.errors import EmptyInputError, InputTooLongError
from antiphon.models.chat import ChatFormat, Turn
from antiphon.models.voice import phonemes
from antiphon.models.voice.limits import MAX_SPEECH_PARTS, THINKER_CONTEXT, THINKER_REPLY
from antiphon.models.voice.text import split_sentences
from antiphon.pipeline.entry import EntryRequest, Message


class ChatEntry:
    """A conversation as one prompt of the thinker, in the model's own chat template.

    Without a system message the template puts in the model's own; this small model answers worse
    with another. A SessionEntryAdapter: the conversation can go on after an answer.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._format = ChatFormat(checkpoint)

    def prompts(self, request: EntryRequest) -> list[list[int]]:
        messages = request.messages or (Message("user", request.text),)
        ids = self._format.prompt([_turn(message) for message in _answerable(messages)])
        limit = THINKER_CONTEXT - THINKER_REPLY
        if len(ids) > limit:
            raise InputTooLongError(
                f"The conversation takes {len(ids)} tokens; at most {limit} leave room for an"
                " answer: shorten it."
            )
        return [ids]

    def continuation(self, text: str) -> list[int]:
        """See `ChatFormat.continuation`."""
        (message,) = _answerable((Message("user", text),))
        return self._format.continuation(_turn(message))


def _turn(message: Message) -> Turn:
    """Without surrounding space, which the template's maker strips."""
    return {"role": message.role, "content": message.content.strip()}


def _answerable(messages: Sequence[Message]) -> Sequence[Message]:
    if not messages[-1].content.strip():
        raise EmptyInputError("There is no text to answer: give one.")
    return messages


class SpeechEntry:
    """A text as prompts of the talker, one for each sentence or piece of a long one."""

    def __init__(self, checkpoint: Path) -> None:
        pass

    def prompts(self, request: EntryRequest) -> list[list[int]]:
        texts = [request.text, *(message.content for message in request.messages)]
        sentences = split_sentences("\n\n".join(texts))
        if len(sentences) > MAX_SPEECH_PARTS:
            raise InputTooLongError(
                f"The text has {len(sentences)} sentences; at most {MAX_SPEECH_PARTS} are spoken"
                " at once: split it."
            )
        prompts = [prompt for sentence in sentences for prompt in phonemes.prompts(sentence)]
        if not prompts:
            raise EmptyInputError("There is nothing to speak in the text: give one with words.")
        return prompts
