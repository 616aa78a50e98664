"""A step's tensors become rows of the requests that want them, by declared layouts only."""

from __future__ import annotations

import pytest
import torch

from antiphon.payload.adapters import StepRows
from antiphon.payload.types import Field, per_request, per_token, shared
from antiphon.worker.device import CpuOps, ops_for
from antiphon.worker.materialise import StepRow, materialise
from antiphon.worker.rows import RowLog
from antiphon.worker.side_outputs import OutputTap, StageForward

HIDDEN = torch.arange(8 * 2, dtype=torch.float32).reshape(8, 2)  # 7 tokens and one of padding


def batch(*logs: RowLog | None) -> list[StepRow]:
    """Prompts of five, one and one tokens; requests without a log want nothing (C26)."""
    spans = [(0, 5), (5, 6), (6, 7)]
    return [
        StepRow(log, index, start, stop, first_position=0)
        for index, (log, (start, stop)) in enumerate(zip(logs, spans, strict=False))
        if log is not None
    ]


def released(log: RowLog) -> list[StepRows]:
    return log.confirm(1000)


def test_each_request_has_its_own_rows() -> None:
    """C26, C28: several requests in one step, one of which wants nothing."""
    first, last = RowLog(), RowLog()
    assert materialise(CpuOps(), batch(first, None, last), HIDDEN, {}, 3) == []
    (a,), (b,) = released(first), released(last)
    assert (a.first_position, b.first_position) == (0, 0)
    assert a.hidden is not None
    assert b.hidden is not None
    assert torch.equal(a.hidden, HIDDEN[0:5])
    assert torch.equal(b.hidden, HIDDEN[6:7])


def test_side_outputs_follow_their_layout() -> None:
    names = ("each", "one", "all")
    first, last = RowLog(side_names=names), RowLog(side_names=names)
    side = {
        "each": per_token(torch.arange(8)),
        "one": per_request(torch.tensor([10, 11, 12])),
        "all": shared(torch.tensor([1, 2, 3, 4])),
    }
    assert materialise(CpuOps(), batch(first, None, last), HIDDEN, side, 3) == []
    (a,), (b,) = released(first), released(last)
    assert {name: tensor.tolist() for name, tensor in a.side.items()} == {
        "each": [0, 1, 2, 3, 4],
        "one": [10],
        "all": [1, 2, 3, 4],
    }
    assert {name: tensor.tolist() for name, tensor in b.side.items()} == {
        "each": [6],
        "one": [12],
        "all": [1, 2, 3, 4],
    }


@pytest.mark.parametrize(
    "field",
    [
        per_token(torch.arange(7)),
        per_token(torch.arange(3)),
        per_request(torch.arange(8)),
        per_request(torch.arange(2)),
        per_token(torch.tensor(1.0)),
        None,
    ],
)
def test_a_wrong_length_fails_the_requests_concerned(field: Field | None) -> None:
    """C26: no shape is guessed, also not where it would fit another layout; no log is touched."""
    wants, wants_not = RowLog(side_names=("odd", "even")), RowLog(side_names=("even",))
    side = {"even": per_request(torch.arange(3))} | ({} if field is None else {"odd": field})
    failed = materialise(CpuOps(), batch(wants, wants_not), HIDDEN, side, 3)
    assert [(want.log is wants, "'odd'" in str(error)) for want, error in failed] == [(True, True)]
    assert wants.confirm(1000) == []
    assert len(released(wants_not)) == 1


def test_only_what_a_request_wants_is_copied() -> None:
    class Counting(CpuOps):
        copies = 0

        def snapshot(self, rows: torch.Tensor):  # type: ignore[no-untyped-def]
            self.copies += 1
            return super().snapshot(rows)

    ops = Counting()
    log = RowLog(wants_hidden=False, side_names=("each",))
    side = {"each": per_token(torch.arange(8)), "unwanted": per_token(torch.arange(8))}
    materialise(ops, batch(log), HIDDEN, side, 3)
    (rows,) = released(log)
    assert (ops.copies, rows.hidden, list(rows.side)) == (1, None, ["each"])


@pytest.mark.parametrize("span", ["part", "whole"])
def test_copies_outlive_the_buffers_they_came_from(span: str) -> None:
    """C127: graphs and persistent buffers are overwritten by the next step."""
    hidden = HIDDEN[:5].clone() if span == "whole" else HIDDEN.clone()
    side = {
        "each": per_token(hidden[:, 0]),
        "all": shared(hidden[0]),
        "one": per_request(hidden[:1]),
    }
    log = RowLog(side_names=side)
    assert materialise(CpuOps(), batch(log), hidden, side, 1) == []
    hidden.fill_(float("nan"))
    (rows,) = released(log)
    assert rows.hidden is not None
    assert torch.equal(rows.hidden, HIDDEN[:5])
    assert rows.side["each"].tolist() == HIDDEN[:5, 0].tolist()
    assert rows.side["all"].tolist() == HIDDEN[0].tolist()
    assert rows.side["one"].tolist() == HIDDEN[:1].tolist()


# --- the tap --------------------------------------------------------------------------------------


class Model(torch.nn.Module):
    """Returns plain hidden states, or with `extra` side outputs beside them."""

    marker = "the model's own"

    def forward(self, rows: torch.Tensor, *, extra: bool) -> torch.Tensor | StageForward:
        return StageForward(rows, {"each": per_token(rows[:, 0])}) if extra else rows


def test_the_tap_hands_on_hidden_states_alone() -> None:
    tap = OutputTap(Model())
    assert torch.equal(tap(HIDDEN, extra=True), HIDDEN)
    assert list(tap.take()) == ["each"]
    assert tap.take() == {}


def test_side_outputs_never_outlive_their_step() -> None:
    """C10: what nobody took is not found after a step that has none."""
    tap = OutputTap(Model())
    tap(HIDDEN, extra=True)
    assert torch.equal(tap(HIDDEN, extra=False), HIDDEN)
    assert tap.take() == {}


def test_everything_else_of_the_tap_is_the_models() -> None:
    model = Model()
    tap = OutputTap(model)
    assert tap.marker == "the model's own"
    assert tap.model is model


def test_a_device_has_its_operations() -> None:
    assert isinstance(ops_for(torch.device("cpu")), CpuOps)
    assert CpuOps().free_bytes() == 0
