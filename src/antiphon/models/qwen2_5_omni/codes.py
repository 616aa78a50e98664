"""Both ends of `codes`, from the talker to the vocoder: the sampled ids are the codes, all at once.

The vocoder looks at whole utterances, as transformers' does: nothing of it is a stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import Qwen2_5OmniConfig

from antiphon.core.prompt_plan import PromptPlan
from antiphon.errors import AdapterError, InputTooLongError, InvalidRequestError
from antiphon.models.qwen2_5_omni.configs import max_codes, num_codes, stop_ids
from antiphon.models.qwen2_5_omni.params import SEED, SPEAKER
from antiphon.models.qwen2_5_omni.speakers import Speakers
from antiphon.payload.adapters import Input, OutputNeeds, StageContext, StepRows
from antiphon.payload.types import Payload, Scalar, per_token

CODES = "codes"

_MAX_SEED = (1 << 63) - 1


class CodesOutput:
    """The talker's end."""

    needs = OutputNeeds(requires_token_updates=True)

    def __init__(self, context: StageContext) -> None:
        config = Qwen2_5OmniConfig.from_pretrained(context.model)
        self._ends = frozenset(stop_ids(config.talker_config))

    def open(self, uid: str, params: Mapping[str, Scalar]) -> SpokenCodes:
        return SpokenCodes(self._ends)


class SpokenCodes:
    """One request's codes, up to the one that ends them."""

    def __init__(self, ends: frozenset[int]) -> None:
        self._ends = ends
        self._codes: list[int] = []
        self._ended = False

    def on_tokens(self, token_ids: Sequence[int]) -> list[Payload]:
        for token in token_ids:
            self._ended = self._ended or token in self._ends
            if not self._ended:
                self._codes.append(token)
        return []

    def on_rows(self, rows: StepRows) -> list[Payload]:
        return []

    def on_end(self) -> list[Payload]:
        if not self._codes:
            return []  # nothing was said
        return [Payload({CODES: per_token(torch.tensor(self._codes, dtype=torch.int32))})]


class CodesInput:
    """The vocoder's end: a code is an id of its prompt."""

    def __init__(self, context: StageContext) -> None:
        config: Any = Qwen2_5OmniConfig.from_pretrained(context.model)
        dit = config.token2wav_config.dit_config
        self._num_codes = num_codes(dit)
        self._max_codes = max_codes(dit)
        self._speakers = Speakers(context.model)
        self._seed = _checked_seed(context.options.get(SEED, 0))

    def open(self, uid: str, params: Mapping[str, Scalar]) -> Utterance:
        """Raises InvalidRequestError for a speaker that there is not, and for no seed."""
        speaker = self._speakers.chosen(params).name
        seed = _checked_seed(params.get(SEED, self._seed))
        return Utterance(self._num_codes, self._max_codes, {SPEAKER: speaker, SEED: seed})


class Utterance:
    """One request."""

    def __init__(self, codes: int, longest: int, extra: Mapping[str, int | str]) -> None:
        self._num_codes = codes
        self._longest = longest
        self._extra = extra

    def on_payload(self, payload: Payload, *, last: bool) -> Input:
        """Raises AdapterError for what cannot be decoded, InputTooLongError for too much of it."""
        field = payload.fields.get(CODES)
        if field is None or field.tensor.dtype != torch.int32 or field.tensor.dim() != 1:
            raise AdapterError(f"the payload has no vector {CODES!r} of int32")
        codes: list[int] = field.tensor.tolist()
        if not codes or min(codes) < 0 or max(codes) >= self._num_codes:
            raise AdapterError(
                f"the talker gave {max(codes, default=None)} among {len(codes)} codes; the vocoder"
                f" has those from 0 to {self._num_codes - 1}. Sample with a lower temperature"
            )
        if len(codes) > self._longest:
            raise InputTooLongError(
                f"The speech has {len(codes)} codes; the vocoder decodes {self._longest} at once:"
                " lower the talker's max_tokens."
            )
        return Input(PromptPlan(tuple(codes), extra=self._extra))

    def on_end(self) -> Input:
        return Input()


def _checked_seed(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_SEED:
        raise InvalidRequestError(f"{SEED} is {value!r}; give a whole number from 0 to 2**63 - 1")
    return value
