"""The way into the `codec-lm` pipeline: a text to be spoken, as one prompt."""

from __future__ import annotations

from pathlib import Path

from antiphon.errors import (
    EmptyInputError,
    InputTooLongError,
    InvalidRequestError,
    ModelUnavailableError,
)
from antiphon.models.chat import ChatTemplate, encoded
from antiphon.models.codec_lm.tokens import longest_input
from antiphon.pipeline.detokenize import load_tokenizer
from antiphon.pipeline.entry import EntryRequest

TEXT_START, TEXT_END = "<|TEXT_UNDERSTANDING_START|>", "<|TEXT_UNDERSTANDING_END|>"
SPEECH_START = "<|SPEECH_GENERATION_START|>"

_ASKED = f"Convert the text to speech:{TEXT_START}{{}}{TEXT_END}"


class SpeechEntry:
    """A text in the prompt that Llasa was trained with, if the tokenizer has its tokens: the
    user's turn asks for speech and the assistant's has begun (the model card of HKUSTAudio's
    Llasa-1B, which renders it with `continue_final_message`). Otherwise the text is the user's turn
    in the checkpoint's own chat template.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._tokenizer = load_tokenizer(checkpoint)
        self._template = ChatTemplate(checkpoint)
        self._marked = all(
            self._tokenizer.token_to_id(name) is not None
            for name in (TEXT_START, TEXT_END, SPEECH_START)
        )
        self._longest = longest_input(checkpoint)

    def prompts(self, request: EntryRequest) -> list[list[int]]:
        """One prompt. Raises EmptyInputError for a text that is blank, InputTooLongError for one
        that the model's positions cannot take (the stage's own length may be less, and is the
        stage's to check), InvalidRequestError for parameters and for what is no text.
        """
        if request.params:
            given = ", ".join(request.params)
            raise InvalidRequestError(
                f"a text is spoken without parameters here, and {given} was given; leave it out"
            )
        texts = [request.text, *(message.content for message in request.messages)]
        text = "\n\n".join(text.strip() for text in texts if text.strip())
        if not text:
            raise EmptyInputError("There is nothing to speak in the text: give one with words.")
        ids = encoded(self._tokenizer, self._prompt(text))
        if self._longest is not None and len(ids) > self._longest:
            raise InputTooLongError(
                f"The text takes {len(ids)} tokens; at most {self._longest} leave the model room"
                " to speak: split it."
            )
        return [ids]

    def _prompt(self, text: str) -> str:
        if not self._marked:
            messages = [{"role": "user", "content": text}]
            return self._template.render(messages)
        messages = [
            {"role": "user", "content": _ASKED.format(text)},
            {"role": "assistant", "content": SPEECH_START},
        ]
        rendered = self._template.render(messages, add_generation_prompt=False)
        before, start, _ = rendered.rpartition(SPEECH_START)
        if not start:
            raise ModelUnavailableError(
                "the model's chat template leaves out what the assistant has begun to say, so"
                " nothing would be spoken; add the template that it was trained with"
            )
        return before + start
