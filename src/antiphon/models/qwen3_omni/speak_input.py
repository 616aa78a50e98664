"""The talker's end of `speak`: its prompt, and a row for each token that it feeds back.

Rows stay in the thinker's space; the talker's model projects them (`embed_prompt`, `condition`).
The prompt is that of transformers' `Qwen3OmniMoeForConditionalGeneration.generate`: what users
said, then nine rows in which the reply's beginning meets the ids that set the codec up.

    text    start role break  pad      pad        pad        pad      bos        1st token
    codec     -    -     -    nothink  think_bos  think_eos  speaker  codec_pad  codec_bos
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import Qwen3OmniMoeConfig

from antiphon.core.prompt_plan import PromptPlan
from antiphon.errors import AdapterError
from antiphon.models.checkpoint import read_rows
from antiphon.models.qwen3_omni.dialogue import REPLY_ROWS
from antiphon.models.qwen3_omni.speak_output import MEDIA, PROMPT, REPLY
from antiphon.models.qwen3_omni.voices import SPEAKER, choose_speaker, speakers_of
from antiphon.payload.adapters import Input, StageContext
from antiphon.payload.types import Payload, Scalar

TEXT, HIDDEN = 0, 1
"""Column 0 of `Input.prompt_marks`: which projection a row goes through."""

NO_CODEC = -1
"""Column 1: the codec id whose embedding is added to a row, or none."""

EMBEDDINGS = "thinker.model.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class Setup:
    """What is the same for all requests of a checkpoint."""

    prelude: tuple[int, ...]  # codec ids before the speaker's
    opening: tuple[int, ...]  # and after it
    placeholder: int  # stands for a row in the prompt's ids
    speakers: Mapping[str, int]
    bos: torch.Tensor  # [thinker's hidden], the thinker's embeddings of what begins speech,
    eos: torch.Tensor  # ends it
    pad: torch.Tensor  # and fills it

    @classmethod
    def read(cls, checkpoint: str) -> Setup:
        """Raises ModelUnavailableError for a checkpoint without speakers or these embeddings."""
        config: Any = Qwen3OmniMoeConfig.from_pretrained(checkpoint)
        talker = config.talker_config
        ids = [config.tts_bos_token_id, config.tts_eos_token_id, config.tts_pad_token_id]
        bos, eos, pad = read_rows(checkpoint, EMBEDDINGS, ids)
        return cls(
            prelude=(talker.codec_nothink_id, talker.codec_think_bos_id, talker.codec_think_eos_id),
            opening=(talker.codec_pad_id, talker.codec_bos_id),
            # Never sampled, so that a repetition penalty on the prompt's ids changes nothing.
            placeholder=talker.codec_pad_id,
            speakers=speakers_of(checkpoint),
            bos=bos,
            eos=eos,
            pad=pad,
        )


class SpeakInput:
    """Made once for the edge."""

    def __init__(self, context: StageContext) -> None:
        self._setup = Setup.read(context.model)

    def open(self, uid: str, params: Mapping[str, Scalar]) -> Speech:
        """Raises InvalidRequestError for a speaker that the checkpoint does not have."""
        return Speech(self._setup, choose_speaker(self._setup.speakers, params.get(SPEAKER)))


class Speech:
    """One reply to be spoken."""

    def __init__(self, setup: Setup, speaker: int) -> None:
        self._setup = setup
        self._speaker = speaker
        self._dtype: torch.dtype | None = None  # of the thinker's rows, once the prompt is there

    def on_payload(self, payload: Payload, *, last: bool) -> Input:
        """Raises AdapterError for a payload that is not what the thinker's end sends."""
        plan = rows = marks = None
        if self._dtype is None:
            rows, marks = self._prompt(payload)
            self._dtype = rows.dtype
            plan = PromptPlan((self._setup.placeholder,) * len(rows), rows_local=True)
        elif REPLY not in payload.fields:
            raise AdapterError(f"the payload has no field {REPLY!r}")
        spoken = self._checked(payload, REPLY) if REPLY in payload.fields else None
        made = Input(plan=plan, prompt_rows=rows, prompt_marks=marks, rows=spoken)
        return self._ended(made) if last else made

    def on_end(self) -> Input:
        """The reply is complete. Without a first token there is nothing to speak."""
        return Input() if self._dtype is None else self._ended(Input())

    def _ended(self, made: Input) -> Input:
        """The end of the text is told by a row of its own; behind it there is only padding."""
        eos = self._setup.eos.to(self._dtype)[None]
        rows = eos if made.rows is None else torch.cat([made.rows, eos])
        return replace(made, rows=rows, padding=self._setup.pad.to(self._dtype))

    def _prompt(self, payload: Payload) -> tuple[torch.Tensor, torch.Tensor]:
        """The prompt's rows [n, thinker's hidden] and their marks, int64 [n, 2]."""
        given = self._checked(payload, PROMPT)
        media = payload.fields.get(MEDIA)
        if media is None or media.tensor.shape != given.shape[:1] or len(given) < REPLY_ROWS:
            raise AdapterError(
                f"{MEDIA!r} has to say of each of {REPLY_ROWS} rows or more what it is"
            )
        setup, dtype = self._setup, given.dtype
        pad, bos = setup.pad.to(dtype), setup.bos.to(dtype)
        begun, first = given[:-1], given[-1]
        rows = torch.cat([begun, torch.stack([pad, pad, pad, pad, bos, first])])
        codec = torch.tensor([*setup.prelude, self._speaker, *setup.opening])
        marks = torch.full((len(rows), 2), NO_CODEC)
        marks[:, 0] = TEXT
        marks[: len(given), 0][media.tensor.bool()] = HIDDEN
        marks[len(begun) :, 1] = codec
        return rows, marks

    def _checked(self, payload: Payload, name: str) -> torch.Tensor:
        """Rows of the thinker's width. Raises AdapterError if the field is not that."""
        field = payload.fields.get(name)
        width = len(self._setup.pad)
        if field is None or field.tensor.dim() != 2 or field.tensor.shape[1] != width:
            found = None if field is None else tuple(field.tensor.shape)
            raise AdapterError(f"{name!r} has to be rows of {width} numbers, and is {found}")
        if not field.tensor.is_floating_point():
            raise AdapterError(f"{name!r} has to be of floating point, not {field.tensor.dtype}")
        return field.tensor
