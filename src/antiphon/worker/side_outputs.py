"""Tensors that a model produces beside its hidden states, each with an explicit layout.

A stage model may return `StageForward` from `forward`. The tap stands outside every wrapper that
vLLM puts around the model, keeps the side outputs for the runner and hands the hidden states on, so
that no upstream code ever sees anything but what it expects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from antiphon.errors import PayloadError
from antiphon.payload.ref import Layout
from antiphon.payload.types import Field


@dataclass(frozen=True, slots=True)
class StageForward:
    """What a stage model's `forward` may return in place of hidden states.

    PER_TOKEN fields have as many rows as `hidden`, PER_REQUEST fields one per request of the batch;
    SHARED fields belong to all requests as they are.
    """

    hidden: torch.Tensor  # [num_tokens, hidden]
    side: Mapping[str, Field] = field(default_factory=dict)


class OutputTap:
    """Callable in place of the model; everything else is the model's own."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._side: Mapping[str, Field] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._model(*args, **kwargs)
        if isinstance(result, StageForward):
            self._side = result.side
            return result.hidden
        self._side = {}
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    @property
    def model(self) -> Any:
        return self._model

    def take(self) -> Mapping[str, Field]:
        """Side outputs of the last forward."""
        side, self._side = self._side, {}
        return side


def row_problem(
    name: str, field_: Field | None, num_tokens: int, num_requests: int
) -> PayloadError | None:
    """What is wrong with a side output that a request wants: absent, or not as long as declared."""
    if field_ is None:
        return PayloadError(f"the model did not return the side output '{name}'")
    rows = field_.tensor.shape[0] if field_.tensor.ndim else 0
    expected = {
        Layout.PER_TOKEN: num_tokens,
        Layout.PER_REQUEST: num_requests,
        Layout.SHARED: rows,
    }[field_.layout]
    if rows == expected:
        return None
    return PayloadError(
        f"side output '{name}' is declared {field_.layout} and must have {expected} rows, "
        f"the model returned {rows}"
    )
