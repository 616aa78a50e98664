"""The way into the `qwen3-tts` pipeline: a text to be spoken enters at the talker."""

from __future__ import annotations

from pathlib import Path

from antiphon.errors import EmptyInputError
from antiphon.models.chat import encoded
from antiphon.models.qwen3_tts.prompt import (
    instruction_of,
    language_of,
    speaker_of,
    streaming_of,
)
from antiphon.models.qwen3_tts.settings import TtsSettings
from antiphon.models.qwen3_tts.tokenizer import spoken_text, text_tokenizer
from antiphon.pipeline.entry import EntryRequest


class SpeechEntry:
    """A text in the official template, as one prompt."""

    def __init__(self, checkpoint: Path) -> None:
        self._tokenizer = text_tokenizer(checkpoint)
        self._settings = TtsSettings.read(checkpoint)

    def prompts(self, request: EntryRequest) -> list[list[int]]:
        """Raises EmptyInputError for a text that is blank, InvalidRequestError for parameters that
        the checkpoint cannot serve and for what is no text.
        """
        language_of(self._settings, request.params, speaker_of(self._settings, request.params))
        instruction_of(self._settings, request.params)
        streaming_of(request.params)
        texts = [request.text, *(message.content for message in request.messages)]
        text = "\n".join(text.strip() for text in texts if text.strip())
        if not text:
            raise EmptyInputError("There is no text to speak: give one.")
        return [encoded(self._tokenizer, spoken_text(text))]
