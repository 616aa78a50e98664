"""From a step's device tensors to rows of the requests that want them.

The inputs (offsets, positions, ids) are read on the main thread before the next step reuses them;
the wanted rows are packed into one copy per tensor. Nothing live is read afterwards: whoever needs
the rows waits for the copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from antiphon.errors import PayloadError
from antiphon.payload.ref import Layout
from antiphon.payload.types import Field
from antiphon.worker.device import DeviceOps, HostCopy
from antiphon.worker.rows import CopiedRows, PendingRows, RowLog
from antiphon.worker.side_outputs import row_problem


@dataclass(frozen=True, slots=True)
class StepRow:
    """One wanting request of the step: its place in the batch and in the token rows."""

    log: RowLog
    index: int  # row of the batch
    start: int  # first token row
    stop: int
    first_position: int


def materialise(
    ops: DeviceOps,
    wanted: Sequence[StepRow],
    hidden: torch.Tensor,
    side: Mapping[str, Field],
    num_requests: int,
) -> list[tuple[StepRow, PayloadError]]:
    """Append this step's rows to the log of each request that wants some.

    `hidden` is [num_tokens (padded), hidden]. Returns the requests that a side output fails: it is
    absent or of a wrong length. Their logs have not been touched.
    """
    names = sorted(frozenset().union(*(want.log.side_names for want in wanted)))
    problems = {
        name: problem
        for name in names
        if (problem := row_problem(name, side.get(name), len(hidden), num_requests)) is not None
    }
    served = [want for want in wanted if problems.keys().isdisjoint(want.log.side_names)]
    if served:
        fields = {name: side[name] for name in names if name not in problems}
        _append(ops, served, hidden, fields)
    return [
        (want, next(problems[name] for name in problems if name in want.log.side_names))
        for want in wanted
        if not problems.keys().isdisjoint(want.log.side_names)
    ]


def _append(
    ops: DeviceOps, wanted: Sequence[StepRow], hidden: torch.Tensor, side: Mapping[str, Field]
) -> None:
    # [num_wanted_tokens]
    rows = ops.to_device(torch.cat([torch.arange(w.start, w.stop) for w in wanted]))
    indices = ops.to_device(torch.tensor([w.index for w in wanted]))
    hidden_wanted = any(want.log.wants_hidden for want in wanted)
    packed_hidden = ops.snapshot(hidden[rows]) if hidden_wanted else None
    packed_side = {name: _pack(ops, field, rows, indices) for name, field in side.items()}
    offset = 0
    for order, want in enumerate(wanted):
        count = want.stop - want.start
        sides = {
            name: (field.layout, _part(field.layout, packed_side[name], offset, count, order))
            for name, field in side.items()
            if name in want.log.side_names
        }
        hidden_rows = None
        if packed_hidden is not None and want.log.wants_hidden:
            hidden_rows = CopiedRows(packed_hidden, offset, offset + count)
        want.log.append(PendingRows(want.first_position, count, hidden_rows, sides))
        offset += count


def _pack(ops: DeviceOps, field: Field, rows: torch.Tensor, indices: torch.Tensor) -> HostCopy:
    match field.layout:
        case Layout.PER_TOKEN:
            return ops.snapshot(field.tensor[rows])
        case Layout.PER_REQUEST:
            return ops.snapshot(field.tensor[indices])
        case Layout.SHARED:
            return ops.snapshot(field.tensor)


def _part(layout: Layout, packed: HostCopy, offset: int, count: int, order: int) -> CopiedRows:
    match layout:
        case Layout.PER_TOKEN:
            return CopiedRows(packed, offset, offset + count)
        case Layout.PER_REQUEST:
            return CopiedRows(packed, order, order + 1)
        case Layout.SHARED:
            return CopiedRows(packed, 0, 1 << 62)
