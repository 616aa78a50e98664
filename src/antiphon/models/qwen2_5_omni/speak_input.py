"""The talker's end of `speak`: its prompt, and a row for each token that it feeds back.

Rows stay as wide as the thinker; the talker's model projects them (`embed_prompt`, `condition`).
All of it is as in transformers' `Qwen2_5OmniForConditionalGeneration.generate`:

    prompt   the thinker's prompt   speaker's token   reply's 1st token
    codec    mask ...               pad               bos
    added    -                      yes               yes

    output token    0                  1        ...  n - 2         from there on
    row             reply's 2nd token  3rd      ...  end of text   padding
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import Qwen2_5OmniConfig

from antiphon.core.prompt_plan import PromptPlan
from antiphon.errors import AdapterError
from antiphon.models.checkpoint import read_rows
from antiphon.models.qwen2_5_omni.speak_output import PROMPT, ROWS
from antiphon.models.qwen2_5_omni.speakers import Speakers
from antiphon.payload.adapters import Input, StageContext
from antiphon.payload.types import Payload, Scalar

EMBEDDINGS = "thinker.model.embed_tokens.weight"

NO_CODEC = -1
"""In `Input.prompt_marks` [n, 1]: no codec token is added to a row."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is the same for all requests of a checkpoint."""

    codec_mask: int  # stand for the prompt's rows in its ids, which a repetition penalty counts
    codec_pad: int
    codec_bos: int
    text_end: torch.Tensor  # [thinker's hidden], the thinker's embeddings of what ends speech
    text_pad: torch.Tensor  # and fills it
    speaker_bos: Mapping[str, torch.Tensor]  # and begins it, by speaker

    @classmethod
    def read(cls, checkpoint: str, speakers: Speakers) -> Setup:
        """Raises ModelUnavailableError for a checkpoint without these embeddings."""
        talker: Any = Qwen2_5OmniConfig.from_pretrained(checkpoint).talker_config
        names = list(speakers.by_name)
        ids = [talker.tts_text_end_token_id, talker.tts_text_pad_token_id]
        ids += [speakers.by_name[name].bos_token for name in names]
        end, pad, *begins = read_rows(checkpoint, EMBEDDINGS, ids)
        return cls(
            codec_mask=talker.tts_codec_mask_token_id,
            codec_pad=talker.tts_codec_pad_token_id,
            codec_bos=talker.tts_codec_start_token_id,
            text_end=end,
            text_pad=pad,
            speaker_bos=dict(zip(names, begins, strict=True)),
        )


class SpeakInput:
    """Made once for the edge."""

    def __init__(self, context: StageContext) -> None:
        self._speakers = Speakers(context.model)
        self._setup = Setup.read(context.model, self._speakers)

    def open(self, uid: str, params: Mapping[str, Scalar]) -> Speech:
        """Raises InvalidRequestError for a speaker that the checkpoint does not have."""
        speaker = self._speakers.chosen(params)
        return Speech(self._setup, self._setup.speaker_bos[speaker.name])


class Speech:
    """One reply to be spoken. Without a token between its prompt and its end there is nothing to
    speak: the request ends without a prompt.
    """

    def __init__(self, setup: Setup, speaker_bos: torch.Tensor) -> None:
        self._setup = setup
        self._speaker_bos = speaker_bos
        self._prompt: int | None = None  # rows of the thinker's prompt
        self._held: list[torch.Tensor] = []  # until the prompt can be planned
        self._planned = False
        self._dtype = speaker_bos.dtype  # of the thinker's rows, once there are any

    def on_payload(self, payload: Payload, *, last: bool) -> Input:
        """Raises AdapterError for a payload that is not what the thinker's end sends."""
        rows = self._checked(payload)
        self._dtype = rows.dtype
        if self._planned:
            return self._ended(rows) if last else Input(rows=rows)
        if self._prompt is None:
            self._prompt = _count(payload)
        self._held.append(rows)
        if sum(map(len, self._held)) <= self._prompt:
            return Input()
        self._planned = True
        return self._begun(torch.cat(self._held), self._prompt, last=last)

    def on_end(self) -> Input:
        """The reply is complete."""
        return self._ended(None) if self._planned else Input()

    def _begun(self, given: torch.Tensor, prompt: int, *, last: bool) -> Input:
        """Prompt and first rows, out of all rows so far: more than `prompt`."""
        self._held.clear()
        setup = self._setup
        speaker = self._speaker_bos.to(self._dtype)[None]
        rows = torch.cat([given[:prompt], speaker, given[prompt : prompt + 1]])
        codec = (setup.codec_pad, setup.codec_bos)
        marks = torch.full((len(rows), 1), NO_CODEC)
        marks[prompt:, 0] = torch.tensor(codec)
        plan = PromptPlan((setup.codec_mask,) * prompt + codec, rows_local=True)
        reply = given[prompt + 1 :]
        rest = self._ended(reply) if last else Input(rows=reply if len(reply) else None)
        return replace(rest, plan=plan, prompt_rows=rows, prompt_marks=marks)

    def _ended(self, rows: torch.Tensor | None) -> Input:
        """The end of the text is told by a row of its own; behind it there is only padding."""
        end = self._setup.text_end.to(self._dtype)[None]
        rows = end if rows is None else torch.cat([rows, end])
        return Input(rows=rows, padding=self._setup.text_pad.to(self._dtype))

    def _checked(self, payload: Payload) -> torch.Tensor:
        """Rows of the thinker's width. Raises AdapterError if the field is not that."""
        field = payload.fields.get(ROWS)
        width = len(self._speaker_bos)
        if field is None or field.tensor.dim() != 2 or field.tensor.shape[1] != width:
            found = None if field is None else tuple(field.tensor.shape)
            raise AdapterError(f"{ROWS!r} has to be rows of {width} numbers, and is {found}")
        if not field.tensor.is_floating_point():
            raise AdapterError(f"{ROWS!r} has to be of floating point, not {field.tensor.dtype}")
        return field.tensor


def _count(payload: Payload) -> int:
    value = payload.meta.get(PROMPT)
    if type(value) is not int or value < 1:
        raise AdapterError(f"{PROMPT!r} of the first payload is {value!r}, not a count of rows")
    return value
