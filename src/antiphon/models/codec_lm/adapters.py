"""What happens at the edge of the `codec-lm` pipeline: sampled ids become codes, and codes prompts
of the codec.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from antiphon.core.frames import FrameWindows, Framing, Window
from antiphon.core.prompt_plan import PromptPlan
from antiphon.errors import AdapterError
from antiphon.models.codec_lm.codecs import read_codec
from antiphon.models.codec_lm.tokens import SpeechTokens, read_speech_tokens
from antiphon.models.voice.windows import FIRST, LEFT, RIGHT, check_window
from antiphon.payload.adapters import Input, OutputNeeds, StageContext, StepRows
from antiphon.payload.types import Payload, Scalar, per_token

CODES = "codes"


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
        first, left, right = (_count(payload, name) for name in (FIRST, LEFT, RIGHT))
        check_window(first, left, right, len(codes))
        return Input(PromptPlan(tuple(codes), extra={FIRST: first, LEFT: left, RIGHT: right}))

    def on_end(self) -> Input:
        return Input()


def codes_payload(window: Window, codes: Sequence[int]) -> Payload:
    """The codes of a window, int32 [n], and where it lies in the stream."""
    meta: dict[str, Scalar] = {FIRST: window.first, LEFT: window.left, RIGHT: window.right}
    return Payload({CODES: per_token(torch.tensor(codes, dtype=torch.int32))}, meta)


def _codes(payload: Payload) -> list[int]:
    field = payload.fields.get(CODES)
    if field is None or field.tensor.dtype != torch.int32 or field.tensor.dim() != 1:
        raise AdapterError(f"the payload has no vector {CODES!r} of int32")
    codes: list[int] = field.tensor.tolist()
    if not codes:
        raise AdapterError("the payload has no code")
    return codes


def _count(payload: Payload, name: str) -> int:
    value = payload.meta.get(name, 0)
    if type(value) is not int:
        raise AdapterError(f"{name!r} of a window of codes is {value!r}, not a count")
    return value
