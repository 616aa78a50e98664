"""Loading weights so that an incomplete checkpoint is an error.

vLLM's own check leaves out every linear layer, embedding and expert, and a layer that it stacks out
of several tensors counts as loaded with the first of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from antiphon.errors import ModelUnavailableError

_MOST_NAMED = 8


@contextmanager
def every_weight(model: nn.Module) -> Iterator[None]:
    """Weights are loaded meanwhile. Raises ModelUnavailableError if a number was not set.

    Each number of each parameter is NaN before; what is NaN afterwards was in no file, or was NaN
    there.
    """
    checked = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.is_floating_point() and parameter.numel() and not parameter.is_meta
    }
    with torch.no_grad():
        for parameter in checked.values():
            parameter.fill_(torch.nan)
    yield
    missing = sorted(name for name, parameter in checked.items() if parameter.isnan().any())
    if missing:
        named = ", ".join(missing[:_MOST_NAMED])
        more = f" and {rest} more" if (rest := len(missing) - _MOST_NAMED) > 0 else ""
        raise ModelUnavailableError(
            f"the checkpoint does not hold all of {named}{more}; give a complete one"
        )
