"""Weights that are read a second time, after a sleep that has dropped them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from weakref import WeakKeyDictionary

import torch
from torch import nn
from vllm.config import ModelConfig

from antiphon.errors import ModelUnavailableError
from antiphon.upstream.reload import undone_if_it_fails

_first: WeakKeyDictionary[nn.Module, dict[str, torch.Size]] = WeakKeyDictionary()
"""What each model was loaded from: names and shapes of its checkpoint's tensors."""


def as_at_first(
    model: nn.Module, weights: Iterable[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights, which have to be the same tensors each time that the model is loaded.

    What it was loaded from at first has been looked at for being whole; upstream takes the second
    time whatever is there. Raises ModelUnavailableError.
    """
    known = _first.get(model)
    found = {}
    for name, weight in weights:
        if known is not None and known.get(name) != weight.shape:
            raise ModelUnavailableError(f"{name} is not what the model was loaded from")
        found[name] = weight.shape
        yield name, weight
    if known is None:
        _first[model] = found
    elif missing := sorted(known.keys() - found.keys()):
        raise ModelUnavailableError(f"{len(missing)} weights are not there, first {missing[0]}")


def reload_whole(model: nn.Module, config: ModelConfig, reload: Callable[[], object]) -> None:
    """Have upstream read all weights again, into the tensors that they had.

    Raises ModelUnavailableError if the checkpoint is gone, damaged or another one. The weights have
    no values then, and another attempt begins anew.
    """
    try:
        with undone_if_it_fails(model, config):
            reload()
    except Exception as error:  # whatever reading a damaged file can end in
        message = " ".join(str(error).split()) or "no message"
        raise ModelUnavailableError(
            f"{config.model}: the weights cannot be read again ({type(error).__name__}: {message});"
            f" put the checkpoint right and wake the stage once more"
        ) from error
