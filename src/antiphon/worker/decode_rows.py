"""Conditioning rows at decode positions: output token r is computed with row r.

Rows are addressed by the output's index, never by a counter: decoding, a chunked replay and a
resume after preemption are the same loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from antiphon.worker.inlets import DecodeRows

Counts = npt.NDArray[np.integer]


@runtime_checkable
class RowConditioned(Protocol):
    """A model that says itself how rows condition its inputs; without it they are added."""

    row_width: int  # of the rows that it takes, which need not be that of its embeddings

    def condition(self, embeds: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Input embeddings [n, hidden] of output tokens with their rows [n, width]: [n, hidden]."""
        ...


def decode_places(
    uids: Sequence[str],
    num_prompt: Counts,
    num_computed: Counts,
    offsets: Counts,
    rows_of: Callable[[str], DecodeRows | None],
) -> list[tuple[int, torch.Tensor]]:
    """Where a step computes output tokens that have rows: (token row of the batch, row [width]).

    By request of the batch: `num_prompt` tokens, `num_computed` before this step; `offsets` are the
    token rows at which each begins, and the end.
    """
    places = []
    for index, uid in enumerate(uids):
        if (kept := rows_of(uid)) is None:
            continue
        start, stop = int(offsets[index]), int(offsets[index + 1])
        prompt, first = int(num_prompt[index]), int(num_computed[index])
        for position in range(max(first, prompt), first + stop - start):
            row = kept.get(position - prompt)
            if row is not None:
                places.append((start + position - first, row))
    return places


def add_rows(model: object, embeds: torch.Tensor, places: list[tuple[int, torch.Tensor]]) -> None:
    """Condition `embeds` [num_tokens, hidden] in place."""
    if not places:
        return
    at = torch.tensor([token for token, _ in places], device=embeds.device)
    rows = torch.stack([row for _, row in places]).to(embeds.device, embeds.dtype)
    chosen = embeds[at]
    made = model.condition(chosen, rows) if isinstance(model, RowConditioned) else chosen + rows
    embeds[at] = made
