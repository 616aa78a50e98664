"""The way into the `qwen2.5-omni` pipeline: a conversation enters at the thinker."""

from __future__ import annotations

from pathlib import Path

from antiphon.models.hearing import HearingChat
from antiphon.pipeline.entry import AnyPrompt, EntryRequest


class ChatEntry:
    """A conversation as one prompt, in the checkpoint's own chat template, word for word.

    It holds no sessions: the talker's prompt has a row for each token of the conversation, and a
    session's next segment computes only what is new of it. Speakers are not checked here, since
    they lie in a file of torch's.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._chat = HearingChat(checkpoint)

    def prompts(self, request: EntryRequest) -> list[AnyPrompt]:
        """Raises as `HearingChat.prompt`."""
        return [self._chat.prompt(request)]
