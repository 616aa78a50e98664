"""The ways into the `voice` pipeline: a conversation enters at the thinker, one with sounds at
hearing, as do sounds that are only to be written down; a text to be spoken enters at the talker.
"""

from __future__ import annotations

from pathlib import Path

from antiphon.core.options import Scalar
from antiphon.errors import (
    EmptyInputError,
    InputTooLongError,
    InvalidRequestError,
    ModelUnavailableError,
)
from antiphon.models.chat import ChatFormat
from antiphon.models.json_files import read_object
from antiphon.models.voice import phonemes
from antiphon.models.voice.dialogue import Conversation, HeardMessage, thinker_prompt, turn_of
from antiphon.models.voice.limits import MAX_SPEECH_PARTS
from antiphon.models.voice.listening import windows
from antiphon.models.voice.text import split_sentences
from antiphon.pipeline.entry import EntryRequest, Message, Prompt

CONVERSATION = "conversation"
"""The parameter of a prompt of hearing that holds the messages around what is heard."""


class ChatEntry:
    """A conversation as one prompt of the thinker, in the model's own chat template.

    Without a system message the template puts in the model's own; this small model answers worse
    with another. A SessionEntryAdapter: the conversation can go on after an answer.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._format = ChatFormat(checkpoint)

    def prompts(self, request: EntryRequest) -> list[list[int]]:
        messages = request.messages or (Message("user", request.text),)
        return [thinker_prompt(self._format, messages)]

    def continuation(self, text: str) -> list[int]:
        """See `ChatFormat.continuation`."""
        if not text.strip():
            raise EmptyInputError("There is no text to answer: give one.")
        return self._format.continuation(turn_of(Message("user", text)))


class HeardChatEntry:
    """A conversation with sounds as prompts of hearing, one for each window of 30 s.

    The messages go along with the first; the thinker's end of the edge puts both together.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._start = start_token(checkpoint)

    def prompts(self, request: EntryRequest) -> list[Prompt]:
        messages = request.messages or (Message("user", request.text, request.audio),)
        heard = [[w for clip in message.audio for w in windows(clip)] for message in messages]
        conversation = Conversation(
            tuple(
                HeardMessage(message.role, message.content, len(own))
                for message, own in zip(messages, heard, strict=True)
            )
        )
        params: dict[str, Scalar] = {CONVERSATION: conversation.to_json()}
        prompts: list[Prompt] = []
        for window in (window for own in heard for window in own):
            prompts.append(Prompt([self._start], (window,), {} if prompts else params))
        return prompts


class TranscribeEntry:
    """Sounds as prompts of hearing, one for each window of 30 s."""

    def __init__(self, checkpoint: Path) -> None:
        self._start = start_token(checkpoint)

    def prompts(self, request: EntryRequest) -> list[Prompt]:
        """Raises InvalidRequestError for another language than the model's."""
        language = request.params.get("language", "en")
        if language not in ("en", "english"):
            raise InvalidRequestError(
                f"the language is {language!r}; this model hears English alone: give en, or nothing"
            )
        turns = request.messages or (Message("user", "", request.audio),)
        clips = [clip for message in turns for clip in message.audio]
        return [Prompt([self._start], (w,)) for clip in clips for w in windows(clip)]


def start_token(checkpoint: Path) -> int:
    """The token that a Whisper's transcripts begin with.

    Raises ModelUnavailableError if the checkpoint names none.
    """
    file = checkpoint / "generation_config.json"
    token = read_object(file).get("decoder_start_token_id")
    if not isinstance(token, int):
        raise ModelUnavailableError(
            f"{file} has no decoder_start_token_id; give a checkpoint of Whisper"
        )
    return token


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
