"""The talker's prompt adapter: the entry's text ids become the talker's prompt and rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch
from tokenizers import Tokenizer

from antiphon.core.prompt_plan import PromptPlan
from antiphon.models.chat import encoded
from antiphon.models.qwen3_tts.prompt import (
    SpokenPrompt,
    Voice,
    instruction_of,
    language_of,
    speaker_of,
    spoken_prompt,
    streaming_of,
)
from antiphon.models.qwen3_tts.settings import TtsSettings
from antiphon.models.qwen3_tts.tokenizer import instruction_text, text_tokenizer
from antiphon.payload.adapters import Input, StageContext
from antiphon.payload.types import Payload, Scalar


class PromptInput:
    """One per stage."""

    def __init__(self, context: StageContext) -> None:
        self._checkpoint = context.model
        self.settings = TtsSettings.read(context.model)

    def open(self, uid: str, params: Mapping[str, Scalar]) -> Speech:
        """Raises InvalidRequestError for a voice that the checkpoint does not have."""
        settings = self.settings
        speaker = speaker_of(settings, params)
        instruction = instruction_of(settings, params)
        voice = Voice(
            speaker=None if speaker is None else settings.talker_config.spk_id[speaker],
            language=language_of(settings, params, speaker),
            instruct=self._encode(instruction_text(instruction)) if instruction else (),
            streaming=streaming_of(params),
        )
        return Speech(settings, voice)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return text_tokenizer(self._checkpoint)

    def _encode(self, text: str) -> list[int]:
        return encoded(self._tokenizer, text)


class Speech:
    """One text to be spoken."""

    def __init__(self, settings: TtsSettings, voice: Voice) -> None:
        self._settings = settings
        self._voice = voice

    def on_payload(self, payload: Payload, *, last: bool) -> Input:
        """Raises EmptyInputError if the entry's ids hold no text."""
        prompt = spoken_prompt(self._settings, payload.token_ids, self._voice)
        return planned(self._settings, prompt)

    def on_end(self) -> Input:
        return Input()


def planned(settings: TtsSettings, prompt: SpokenPrompt) -> Input:
    """Prompt rows int64 [n, 2]: text id, codec id or -1; decode rows int64 [k, 1]: text id."""
    # Never sampled, so that a repetition penalty on the prompt's ids changes nothing.
    placeholder = settings.talker_config.codec_pad_id
    return Input(
        plan=PromptPlan((placeholder,) * len(prompt.rows), rows_local=True),
        prompt_rows=torch.tensor(prompt.rows),
        rows=torch.tensor(prompt.trailing, dtype=torch.int64)[:, None],
        padding=torch.tensor([settings.tts_pad_token_id]),
    )
