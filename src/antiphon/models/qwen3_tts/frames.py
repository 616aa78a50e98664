"""What happens at the edge `codes` (talker → code2wav): frames of codes become windows of a prompt.

On a stream edge windows leave while the talker speaks, each with the frames before it as context;
on a full edge all frames leave at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from antiphon.core.frames import FrameWindows, Framing, Window
from antiphon.core.prompt_plan import PromptPlan
from antiphon.errors import AdapterError
from antiphon.models.qwen3_tts.settings import CodecSettings, TtsSettings
from antiphon.payload.adapters import FRAMES, Input, OutputNeeds, StageContext, StepRows
from antiphon.payload.types import Payload, Scalar, per_token

CODES = "codes"
"""int32 [frames, codes of a frame], context included."""

LEFT = "left"
"""How many of the frames are context before the new ones. Also its key in the prompt's `extra`."""


class CodesOutput:
    """Talker's end."""

    needs = OutputNeeds(side_outputs=(FRAMES,))

    def __init__(self, context: StageContext) -> None:
        self._end = TtsSettings.read(context.model).talker_config.codec_eos_token_id
        self._framing = None
        if context.stream:
            self._framing = Framing.from_options(context.options, f"edge {context.edge}")

    def open(self, uid: str, params: Mapping[str, Scalar]) -> CodeWindows:
        return CodeWindows(self._framing, self._end)


class CodeWindows:
    """One utterance's frames. That of the token that ends it is none, and is dropped."""

    def __init__(self, framing: Framing | None, end: int) -> None:
        self._windows: FrameWindows[torch.Tensor] = FrameWindows(framing)
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
    codes = torch.stack(list(frames)).to(torch.int32)
    return Payload({CODES: per_token(codes)}, {LEFT: window.left})


class CodesInput:
    """Code2wav's end: a prompt's ids are the codes, frame by frame."""

    def __init__(self, context: StageContext) -> None:
        self._decoder = CodecSettings.read(context.model).decoder_config

    def open(self, uid: str, params: Mapping[str, Scalar]) -> CodesInput:
        return self  # a window says it all

    def on_payload(self, payload: Payload, *, last: bool) -> Input:
        """Raises AdapterError for what cannot be decoded."""
        field = payload.fields.get(CODES)
        if field is None:
            raise AdapterError(f"the payload has no field {CODES!r}")
        codes = field.tensor
        if codes.dim() != 2 or codes.shape[1] != self._decoder.num_quantizers or not len(codes):
            raise AdapterError(
                f"{CODES!r} is {tuple(codes.shape)}; it has to be frames of"
                f" {self._decoder.num_quantizers} codes"
            )
        if int(codes.min()) < 0 or int(codes.max()) >= self._decoder.codebook_size:
            raise AdapterError(f"codes have to be from 0 to {self._decoder.codebook_size - 1}")
        left = payload.meta.get(LEFT, 0)
        if type(left) is not int or not 0 <= left < len(codes):
            raise AdapterError(f"{LEFT!r} is {left!r}; it has to be below the {len(codes)} frames")
        return Input(PromptPlan(tuple(codes.flatten().tolist()), extra={LEFT: left}))

    def on_end(self) -> Input:
        return Input()
