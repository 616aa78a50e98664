"""What happens at the edge of the `codec-lm` pipeline: sampled ids become codes, and codes prompts
of the codec.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from antiphon.core.frames import FrameWindows, Framing
from antiphon.errors import AdapterError
from antiphon.models.code_payloads import CODES, codes_payload, window_prompt
from antiphon.models.codec_lm.codecs import read_codec
from antiphon.models.codec_lm.tokens import SpeechTokens, read_speech_tokens
from antiphon.payload.adapters import Input, OutputNeeds, StageContext, StepRows
from antiphon.payload.types import Payload, Scalar


class CodesOutput:
    """The language model's end: codes window by window; on a full edge, all at the end."""

    needs = OutputNeeds(requires_token_updates=True)

    def __init__(self, context: StageContext) -> None:
        self._tokens = read_speech_tokens(context.model)
        self._framing = None
        if context.stream:
            self._framing = Framing.from_options(context.options, f"edge {context.edge}")

    def open(self, uid: str, params: Mapping[str, Scalar]) -> CodeWindows:
        return CodeWindows(self._tokens, self._framing)


class CodeWindows:
    """One request's codes; other ids, such as the one that ends it, are left out."""

    def __init__(self, tokens: SpeechTokens, framing: Framing | None) -> None:
        self._tokens = tokens
        self._windows: FrameWindows[int] = FrameWindows(framing)

    def on_tokens(self, token_ids: Sequence[int]) -> list[Payload]:
        codes = self._tokens.codes(token_ids)
        return [codes_payload(*made) for made in self._windows.push(codes)]

    def on_rows(self, rows: StepRows) -> list[Payload]:
        return []

    def on_end(self) -> list[Payload]:
        return [codes_payload(*made) for made in self._windows.flush()]


class CodesInput:
    """The codec's end: a code is an id of its prompt."""

    def __init__(self, context: StageContext) -> None:
        self._num_codes = read_codec(context.model).num_codes

    def open(self, uid: str, params: Mapping[str, Scalar]) -> CodesInput:
        return self  # a window says it all

    def on_payload(self, payload: Payload, *, last: bool) -> Input:
        """Raises AdapterError for codes that the codec does not have, and for no window."""
        codes = _codes(payload)
        if min(codes) < 0 or max(codes) >= self._num_codes:
            raise AdapterError(
                f"codes from {min(codes)} to {max(codes)} came, and the codec has those from 0 to"
                f" {self._num_codes - 1}; give it the language model that it belongs to"
            )
        return window_prompt(payload, codes)

    def on_end(self) -> Input:
        return Input()


def _codes(payload: Payload) -> list[int]:
    field = payload.fields.get(CODES)
    if field is None or field.tensor.dtype != torch.int32 or field.tensor.dim() != 1:
        raise AdapterError(f"the payload has no vector {CODES!r} of int32")
    codes: list[int] = field.tensor.tolist()
    if not codes:
        raise AdapterError("the payload has no code")
    return codes
