"""Conversations with sounds as prompts, for checkpoints whose chat template has a place for them.

Neither torch nor vllm is imported here: entries run in the orchestrator's process.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from antiphon.errors import EmptyInputError, InvalidRequestError, ModelUnavailableError
from antiphon.models.chat import ChatFormat, Turn
from antiphon.models.json_files import read_object
from antiphon.pipeline.entry import AnyPrompt, EntryRequest, Message, Prompt

# Keys of the placeholder's id in a thinker's configuration; the second is that of older files.
_KEYS = ("audio_token_id", "audio_token_index")


class HearingChat:
    """One prompt of a conversation: the checkpoint's template writes the marks of its clips.

    The constructor reads files; ModelUnavailableError if the checkpoint lacks one that it needs.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._format = ChatFormat(checkpoint)
        self._audio_token = audio_token(checkpoint)

    def prompt(self, request: EntryRequest) -> AnyPrompt:
        """The conversation, and the beginning of its answer.

        Raises EmptyInputError for a last message with neither text nor sound, InvalidRequestError
        if the template refuses the conversation, or if in one with sounds a text holds the
        placeholder of a sound.
        """
        messages = request.messages or (Message("user", request.text, request.audio),)
        if not (messages[-1].content.strip() or messages[-1].audio):
            raise EmptyInputError("There is nothing to answer: give a text or a sound.")
        ids = self._format.prompt([_turn(message) for message in messages])
        clips = tuple(clip for message in messages for clip in message.audio)
        if not clips:
            return ids
        self._check(ids, len(clips), messages)
        return Prompt(ids, clips)

    def _check(self, ids: list[int], clips: int, messages: Sequence[Message]) -> None:
        places = ids.count(self._audio_token)
        if places == clips:
            return
        texts = [self._format.encode(message.content) for message in messages]
        if any(self._audio_token in text for text in texts):
            raise InvalidRequestError(
                "the text holds the model's own mark for a sound; leave it out beside sounds"
            )
        raise ModelUnavailableError(
            f"the checkpoint's chat template has {places} places for {clips} sounds; use the one"
            " that came with the model's processor"
        )


def audio_token(checkpoint: Path) -> int:
    """The id that stands for a sound in the prompts of a checkpoint's thinker.

    Raises ModelUnavailableError if its configuration has none.
    """
    file = checkpoint / "config.json"
    try:
        config = read_object(file)
        thinker = config.get("thinker_config", config)
        found = [thinker[key] for key in _KEYS if key in thinker]
        return int(found[0])
    except (ModelUnavailableError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise ModelUnavailableError(
            f"{file} names no {_KEYS[0]} of the thinker: {error}; give a checkpoint that hears"
        ) from error


def _turn(message: Message) -> Turn:
    """A text alone stays a text: not every template knows parts in every role."""
    if not message.audio:
        return {"role": message.role, "content": message.content}
    parts = [{"type": "audio"} for _ in message.audio]
    text = [{"type": "text", "text": message.content}] if message.content else []
    return {"role": message.role, "content": [*parts, *text]}
