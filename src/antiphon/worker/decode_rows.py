"""Where a step computes output tokens, and the rows that condition their inputs.

Places are addressed by the output's index, never by a counter: decoding, a chunked replay and a
resume after preemption are the same loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from antiphon.worker.device import DeviceOps
from antiphon.worker.inlets import DecodeRows

Counts = npt.NDArray[np.integer]
Condition = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Input embeddings [n, hidden] of output tokens, their rows [n, width] → the same, conditioned."""


@dataclass(frozen=True, slots=True)
class StepSpans:
    """What a step computes, by request of the batch; views of upstream's buffers."""

    uids: Sequence[str]
    num_prompt: Counts  # prompt tokens
    num_computed: Counts  # tokens computed before this step
    offsets: Counts  # token rows at which each begins, and the end


@dataclass(frozen=True, slots=True)
class Place:
    """A token row of the batch at which output token `index` of a request is computed."""

    token: int
    uid: str
    index: int


def output_places(spans: StepSpans, wanted: Callable[[str], bool]) -> list[Place]:
    """The places of this step, for the requests that are `wanted`."""
    places = []
    for number, uid in enumerate(spans.uids):
        if not wanted(uid):
            continue
        start, stop = int(spans.offsets[number]), int(spans.offsets[number + 1])
        prompt, first = int(spans.num_prompt[number]), int(spans.num_computed[number])
        for position in range(max(first, prompt), first + stop - start):
            places.append(Place(start + position - first, uid, position - prompt))
    return places


def condition_rows(
    embeds: torch.Tensor,
    places: Sequence[Place],
    rows_of: Callable[[str], DecodeRows | None],
    condition: Condition | None,
    ops: DeviceOps,
) -> None:
    """Condition `embeds` [num_tokens, hidden] in place; without `condition`, rows are added."""
    found = []
    for place in places:
        kept = rows_of(place.uid)
        if kept is not None and (row := kept.get(place.index)) is not None:
            found.append((place.token, row))
    if not found:
        return
    at = ops.to_device(torch.tensor([token for token, _ in found]))
    rows = ops.to_device(torch.stack([row for _, row in found]))
    if rows.is_floating_point():
        rows = rows.to(embeds.dtype)
    chosen = embeds[at]
    embeds[at] = chosen + rows if condition is None else condition(chosen, rows)
