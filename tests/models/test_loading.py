"""Weights by name into modules, without an engine."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from vllm.model_executor.models.utils import WeightsMapper

from antiphon.errors import ModelUnavailableError
from antiphon.models.loading import load_mapped, load_module


class Part(nn.Module):
    """A parameter, a buffer that a checkpoint holds, and one that it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))
        self.mean = nn.Buffer(torch.zeros(3))
        self.angles = nn.Buffer(torch.zeros(3), persistent=False)


def weights(**others: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"weight": torch.ones(3), "mean": torch.full((3,), 2.0), **others}


def test_parameters_and_stored_buffers_are_taken() -> None:
    part = Part()
    given = weights(elsewhere=torch.ones(1), angles=torch.ones(3))
    assert load_module(part, given.items(), "the part") == {"weight", "mean"}
    assert part.weight.tolist() == [1.0] * 3
    assert part.mean.tolist() == [2.0] * 3
    assert part.angles.tolist() == [0.0] * 3


def test_a_tensors_own_loader_is_called() -> None:
    """What has no memory yet keeps its weights in it."""
    part, kept = Part().to("meta"), []
    part.weight.weight_loader = lambda param, weight: kept.append(weight)  # type: ignore[assignment]
    load_module(part, weights().items(), "the part")
    assert [weight.tolist() for weight in kept] == [[1.0] * 3]


@pytest.mark.parametrize("missing", ["weight", "mean"])
def test_what_is_missing_is_named(missing: str) -> None:
    given = weights()
    del given[missing]
    with pytest.raises(ModelUnavailableError, match=f"lacks 1 weights of the part.*{missing}"):
        load_module(Part(), given.items(), "the part")


@pytest.mark.parametrize("shape", [(1,), (4,), (1, 3), (3, 1)])
def test_another_shape_is_named(shape: tuple[int, ...]) -> None:
    """Not only where it could not be copied."""
    with pytest.raises(ModelUnavailableError, match=r"the part's mean has shape .* asks for \[3\]"):
        load_module(Part(), weights(mean=torch.ones(shape)).items(), "the part")


@pytest.mark.parametrize(
    ("name", "weight"),
    [("part.weight", torch.ones(4)), ("part.other", torch.ones(3)), ("other.bias", torch.ones(3))],
)
def test_upstreams_loader_names_what_does_not_fit(name: str, weight: torch.Tensor) -> None:
    model = nn.Sequential(Part())
    mapper = WeightsMapper(orig_to_new_prefix={"part.": "0."})
    given = {"part.mean": torch.ones(3), name: weight}
    with pytest.raises(ModelUnavailableError, match=f"weight {name} does not fit"):
        load_mapped(model, given.items(), mapper)
