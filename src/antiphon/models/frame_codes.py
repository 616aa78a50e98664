"""What happens at an edge from a talker to a codec whose frames have several codes: frames become
windows of a prompt.

On a stream edge windows leave while the talker speaks, each with the frames before it as context;
on a full edge all frames leave at the end. A family's adapters say which code ends speech, and how
large frame and codebook are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import torch

from antiphon.core.frames import CodeChunker, FrameWindows, Framing, Window
from antiphon.core.prompt_plan import PromptPlan
from antiphon.errors import AdapterError
from antiphon.payload.adapters import FRAMES, Input, OutputNeeds, StageContext, StepRows
from antiphon.payload.types import Payload, Scalar, per_token

CODES = "codes"
"""int32 [frames, codes of a frame], context included."""

LEFT = "left"
"""How many of the frames are context before the new ones. Also its key in the prompt's `extra`."""


class FramesOutput:
    """Talker's end. `end` is the first code of the frame that ends speech."""

    needs = OutputNeeds(side_outputs=(FRAMES,))

    def __init__(self, context: StageContext, end: int) -> None:
        self._end = end
        self._framing = None
        if context.stream:
            self._framing = Framing.from_options(context.options, f"edge {context.edge}")

    def open(self, uid: str, params: Mapping[str, Scalar]) -> CodeWindows:
        return CodeWindows(self._framing, self._end)


class CodeWindows:
    """One reply's frames. The frame of the token that ends speech is none, and is dropped."""

    def __init__(self, framing: Framing | None, end: int) -> None:
        self._windows: CodeChunker[torch.Tensor] = FrameWindows(framing)
        self._end = end

    def on_tokens(self, token_ids: Sequence[int]) -> list[Payload]:
        return []

    def on_rows(self, rows: StepRows) -> list[Payload]:
        frames = rows.side[FRAMES]
        first = frames[:, 0]
        spoken = frames[(first >= 0) & (first != self._end)]  # a copy: rows are views of a step
        return [_payload(*made) for made in self._windows.push(spoken.unbind(0))]

    def on_end(self) -> list[Payload]:
        return [_payload(*made) for made in self._windows.flush()]


def _payload(window: Window, frames: Sequence[torch.Tensor]) -> Payload:
    """The frames of a window, context included."""
    codes = torch.stack(list(frames)).to(torch.int32)
    return Payload({CODES: per_token(codes)}, {LEFT: window.left})


class FramesInput:
    """The codec's end: a prompt's ids are the codes, frame by frame."""

    def __init__(self, frame_size: int, codebook: int) -> None:
        self._frame_size, self._codebook = frame_size, codebook

    def open(self, uid: str, params: Mapping[str, Scalar]) -> Self:
        return self  # a window says it all

    def on_payload(self, payload: Payload, *, last: bool) -> Input:
        """Raises AdapterError for what cannot be decoded."""
        codes = self._checked(payload)
        left = payload.meta.get(LEFT, 0)
        if type(left) is not int or not 0 <= left < len(codes):
            raise AdapterError(f"{LEFT!r} is {left!r}; it has to be below the {len(codes)} frames")
        return Input(PromptPlan(tuple(codes.flatten().tolist()), extra={LEFT: left}))

    def on_end(self) -> Input:
        return Input()

    def _checked(self, payload: Payload) -> torch.Tensor:
        field = payload.fields.get(CODES)
        if field is None:
            raise AdapterError(f"the payload has no field {CODES!r}")
        codes = field.tensor
        if codes.dtype != torch.int32 or codes.shape[1:] != (self._frame_size,) or not len(codes):
            raise AdapterError(
                f"{CODES!r} has to be int32 frames of {self._frame_size} codes, not {codes.dtype}"
                f" {tuple(codes.shape)}"
            )
        if int(codes.min()) < 0 or int(codes.max()) >= self._codebook:
            raise AdapterError(f"codes have to lie between 0 and {self._codebook - 1}")
        return codes
