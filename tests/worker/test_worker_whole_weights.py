"""An incomplete checkpoint is an error that names what is missing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from antiphon.errors import ModelUnavailableError
from antiphon.worker.whole_weights import every_weight


def fill(model: nn.Module, *, but: tuple[str, ...] = ()) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in but:
                parameter.fill_(1.0)


def test_a_complete_one() -> None:
    model = nn.Linear(3, 2)
    with every_weight(model):
        fill(model)
    assert torch.equal(model.weight, torch.ones(2, 3))


def test_a_missing_parameter_is_named() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    with (
        pytest.raises(ModelUnavailableError, match=r"all of 0\.weight, 1\.bias; give"),
        every_weight(model),
    ):
        fill(model, but=("0.weight", "1.bias"))


def test_a_part_of_a_parameter_is_not_enough() -> None:
    """As when one of the tensors that are stacked in it is missing."""
    model = nn.Linear(3, 2, bias=False)
    with pytest.raises(ModelUnavailableError, match="all of weight;"), every_weight(model):
        model.weight.data[1] = 1.0


def test_a_long_list_is_cut() -> None:
    model = nn.Sequential(*[nn.Linear(1, 1) for _ in range(6)])
    with pytest.raises(ModelUnavailableError, match=r"3\.weight and 4 more;"), every_weight(model):
        pass


def test_what_is_raised_while_loading_comes_through() -> None:
    with pytest.raises(OSError, match="gone"), every_weight(nn.Linear(3, 2)):
        raise OSError("gone")


def test_whole_numbers_and_nothing_at_all_are_not_checked() -> None:
    model = nn.Module()
    model.ids = nn.Parameter(torch.zeros(3, dtype=torch.int64), requires_grad=False)
    model.empty = nn.Parameter(torch.zeros(0))
    with every_weight(model):
        pass
    assert model.ids.tolist() == [0, 0, 0]
