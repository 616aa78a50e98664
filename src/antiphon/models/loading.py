"""How stages' models take their weights by name.

After a deep sleep upstream loads once more, into tensors that have no memory yet: they take a
weight through their `weight_loader` only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper

from antiphon.errors import ModelUnavailableError


def load_mapped(
    model: nn.Module, weights: Iterable[tuple[str, torch.Tensor]], mapper: WeightsMapper
) -> set[str]:
    """vLLM's own way, for models whose layers may be vLLM's. Returns the names of what was loaded.

    Raises ModelUnavailableError, which names the weight, for one that does not fit. Whether all are
    there is looked at by the stage's loader (`antiphon.worker.loader`).
    """
    name = ""

    def noted() -> Iterator[tuple[str, torch.Tensor]]:
        nonlocal name
        for found, weight in weights:
            name = found
            yield found, weight

    try:
        loaded: set[str] = AutoWeightsLoader(model).load_weights(noted(), mapper=mapper)
    except (AssertionError, ValueError) as error:  # how upstream's loaders tell
        raise ModelUnavailableError(
            f"the checkpoint's weight {name} does not fit its configuration: {error}"
        ) from error
    return loaded


def load_module(
    module: nn.Module, weights: Iterable[tuple[str, torch.Tensor]], what: str
) -> set[str]:
    """For a module of plain torch: take parameters and stored buffers by its own names, and leave
    out other weights. Returns the names.

    Raises ModelUnavailableError, which says that the checkpoint lacks weights of `what`, or that
    one has another shape.
    """
    wanted = module.state_dict(keep_vars=True)
    loaded = set()
    for name, weight in weights:
        if name not in wanted:
            continue
        place = wanted[name]
        check_shape(f"{what}'s {name}", weight, place)
        # An attribute that upstream's loaders set, while they load again.
        getattr(place, "weight_loader", default_weight_loader)(place, weight)
        loaded.add(name)
    if missing := sorted(wanted.keys() - loaded):
        raise ModelUnavailableError(
            f"the checkpoint lacks {len(missing)} weights of {what}, the first is {missing[0]};"
            " give a complete one in transformers' format"
        )
    return loaded


def check_shape(name: str, weight: torch.Tensor, place: torch.Tensor) -> None:
    """Raises ModelUnavailableError if a weight is not as large as its place."""
    if weight.shape != place.shape:
        raise ModelUnavailableError(
            f"{name} has shape {list(weight.shape)}; the checkpoint's configuration asks for"
            f" {list(place.shape)}"
        )
