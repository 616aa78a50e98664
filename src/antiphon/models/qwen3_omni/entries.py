"""The way into the `qwen3-omni` pipeline: a conversation enters at the thinker."""

from __future__ import annotations

from pathlib import Path

from antiphon.models.hearing import HearingChat
from antiphon.models.qwen3_omni.voices import SPEAKER, choose_speaker, speakers_of
from antiphon.pipeline.entry import AnyPrompt, EntryRequest


class ChatEntry:
    """A conversation as one prompt, in the checkpoint's own chat template, word for word.

    It holds no sessions: the talker's prompt has all that users said, and a session's next segment
    computes only what is new of it.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._chat = HearingChat(checkpoint)
        self._speakers = speakers_of(checkpoint)

    def prompts(self, request: EntryRequest) -> list[AnyPrompt]:
        """Raises InvalidRequestError for an unknown speaker, else as `HearingChat.prompt`."""
        choose_speaker(self._speakers, request.params.get(SPEAKER))
        return [self._chat.prompt(request)]
