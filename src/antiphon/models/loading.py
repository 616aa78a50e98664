"""How stages' models take their weights: all of them, or it is an error."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper

from antiphon.errors import ModelUnavailableError
from antiphon.worker.whole_weights import every_weight


def load_whole(
    model: nn.Module, weights: Iterable[tuple[str, torch.Tensor]], mapper: WeightsMapper
) -> set[str]:
    """vLLM's own way, for models whose layers may be vLLM's. Returns the names of what was loaded.

    Raises ModelUnavailableError for a checkpoint that is not complete.
    """
    with every_weight(model):
        loaded: set[str] = AutoWeightsLoader(model).load_weights(weights, mapper=mapper)
    return loaded


def copy_whole(
    module: nn.Module, weights: Iterable[tuple[str, torch.Tensor]], what: str
) -> set[str]:
    """For a module of plain torch: copy parameters and stored buffers by its own names, and leave
    out other weights. Returns the names.

    Raises ModelUnavailableError, which says that the checkpoint lacks weights of `what`.
    """
    wanted = module.state_dict()
    loaded = set()
    for name, weight in weights:
        if name in wanted:
            wanted[name].copy_(weight)
            loaded.add(name)
    if missing := sorted(wanted.keys() - loaded):
        raise ModelUnavailableError(
            f"the checkpoint lacks {len(missing)} weights of {what}, the first is {missing[0]};"
            " give a complete one in transformers' format"
        )
    return loaded
