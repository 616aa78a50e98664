"""What a stage model computes from in place of token ids: prompts made of rows, frames of codes,
rows that condition output tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from antiphon.errors import AdapterError, AntiphonError
from antiphon.worker.capabilities import Capabilities
from antiphon.worker.decode_rows import StepSpans, condition_rows, output_places
from antiphon.worker.device import DeviceOps
from antiphon.worker.frames import Frames
from antiphon.worker.guard import raised
from antiphon.worker.inlets import DecodeRows, PromptRows


class ModelInputs:
    """Knows the model's own ways of embedding; one per runner.

    `embeddings` are width and dtype of the runner's input embeddings, `frames` those of a decode
    hook.
    """

    def __init__(
        self,
        model: Any,
        capabilities: Capabilities,
        embeddings: tuple[int, torch.dtype],
        frames: Frames | None,
        ops: DeviceOps,
    ) -> None:
        self._model = model
        self._embeds_prompts = capabilities.prompt_width is not None
        self._condition = None if capabilities.row_width is None else model.condition
        self._width, self._dtype = embeddings
        self._frames = frames
        self._ops = ops

    def embed_prompt(self, prompt: PromptRows) -> tuple[torch.Tensor, AntiphonError | None]:
        """Input embeddings [n, hidden] of a planned prompt, on the host.

        An error concerns this request alone; the embeddings are zeros then.
        """
        dtype = self._dtype
        if not self._embeds_prompts:
            return prompt.rows.to(dtype), None
        made: list[torch.Tensor] = []
        count = len(prompt.rows)

        def embed() -> None:
            rows = self._ops.to_device(prompt.rows)
            rows = rows.to(dtype) if rows.is_floating_point() else rows
            marks = None if prompt.marks is None else self._ops.to_device(prompt.marks)
            embeds = self._model.embed_prompt(rows, marks)
            if embeds.shape != (count, self._width):
                raise AdapterError(
                    f"embed_prompt gave {list(embeds.shape)} for {count} rows; the model's inputs"
                    f" are {self._width} wide"
                )
            made.append(embeds.to("cpu", dtype))

        error = raised(embed)
        if error is not None:
            return torch.zeros(count, self._width, dtype=dtype), error
        return made[0], None

    def overlay(
        self,
        embeds: torch.Tensor,
        spans: StepSpans,
        rows_of: Callable[[str], DecodeRows | None],
    ) -> None:
        """Replace the input embeddings [num_tokens, hidden] of output tokens, in place."""
        frames = self._frames
        places = output_places(spans, lambda uid: frames is not None or rows_of(uid) is not None)
        if frames is not None and places:
            at = self._ops.to_device(torch.tensor([place.token for place in places]))
            made = frames.embed([(place.uid, place.index) for place in places])
            embeds[at] = made.to(embeds.dtype)
        condition_rows(embeds, places, rows_of, self._condition, self._ops)
