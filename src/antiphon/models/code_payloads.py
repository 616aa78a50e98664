"""Windows of codes on their way to a codec that has one code to a frame: a payload, then a prompt.

`antiphon.models.frame_codes` does the same for codecs whose frames have several.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from antiphon.core.frames import Window
from antiphon.core.prompt_plan import PromptPlan
from antiphon.errors import AdapterError
from antiphon.models.code_windows import FIRST, LEFT, RIGHT, check_window
from antiphon.payload.adapters import Input
from antiphon.payload.types import Payload, Scalar, per_token

CODES = "codes"
"""int32 [n], context included; where it lies in the stream is in the payload's `meta`."""


def codes_payload(window: Window, codes: Sequence[int]) -> Payload:
    """The codes of a window."""
    meta: dict[str, Scalar] = {FIRST: window.first, LEFT: window.left, RIGHT: window.right}
    return Payload({CODES: per_token(torch.tensor(codes, dtype=torch.int32))}, meta)


def window_prompt(payload: Payload, codes: Sequence[int]) -> Input:
    """The prompt of such a payload's `codes`, which have been checked: a code is an id.

    Raises AdapterError for a window that they cannot be.
    """
    first, left, right = (_count(payload, name) for name in (FIRST, LEFT, RIGHT))
    check_window(first, left, right, len(codes))
    return Input(PromptPlan(tuple(codes), extra={FIRST: first, LEFT: left, RIGHT: right}))


def _count(payload: Payload, name: str) -> int:
    value = payload.meta.get(name, 0)
    if type(value) is not int:
        raise AdapterError(f"{name!r} of a window of codes is {value!r}, not a count")
    return value
