"""The two ways into the `voice` pipeline: a conversation enters at the thinker, a text to be
spoken at the talker.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2.sandbox import ImmutableSandboxedEnvironment

from antiphon.errors import EmptyInputError, InputTooLongError
from antiphon.models.voice import phonemes
from antiphon.models.voice.limits import MAX_SPEECH_PARTS, THINKER_CONTEXT, THINKER_REPLY
from antiphon.models.voice.text import split_sentences
from antiphon.models.voice.weights import chat_template
from antiphon.pipeline.detokenize import load_tokenizer
from antiphon.pipeline.entry import EntryRequest, Message

_ANSWER = "\0"  # stands for an answer in a rendered conversation; no template writes it


class ChatEntry:
    """A conversation as one prompt of the thinker, in the model's own chat template.

    Without a system message the template puts in the model's own; this small model answers worse
    with another. A SessionEntryAdapter: the conversation can go on after an answer.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._tokenizer = load_tokenizer(checkpoint)
        # the template is data that came with the model: it runs in jinja2's sandbox
        sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = sandbox.from_string(chat_template(checkpoint))

    def prompts(self, request: EntryRequest) -> list[list[int]]:
        ids = self._encode(self._render(request.messages or (Message("user", request.text),)))
        limit = THINKER_CONTEXT - THINKER_REPLY
        if len(ids) > limit:
            raise InputTooLongError(
                f"The conversation takes {len(ids)} tokens; at most {limit} leave room for an"
                " answer: shorten it."
            )
        return [ids]

    def continuation(self, text: str) -> list[int]:
        """What the template puts after an answer, up to where the next one begins.

        That is independent of the answer: the template closes one with a special token, at which
        the tokenizer always splits, and what the conversation began with is history already.
        """
        conversation = (Message("user", ""), Message("assistant", _ANSWER), Message("user", text))
        return self._encode(self._render(conversation).partition(_ANSWER)[2])

    def _render(self, messages: Sequence[Message]) -> str:
        if not messages[-1].content.strip():
            raise EmptyInputError("There is no text to answer: give one.")
        return self._template.render(
            messages=[{"role": m.role, "content": m.content.strip()} for m in messages],
            add_generation_prompt=True,
        )

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


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
