"""Seam: an attempt to load weights again that fails is undone.

Reason: upstream loads in place, layer by layer: a layer's tensors are put aside until all of its
weights have come. An attempt that breaks off leaves them there, and the next one counts what came
in the first, so that a layer can be taken for whole that is not. Names used:
`vllm.model_executor.model_loader.reload.layerwise.{get_layerwise_info, finalize_layerwise_reload}`,
`LayerReloadingInfo.{can_load, load_numel, loaded_weights}`.
Fallback: a stage that cannot reload its weights ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import nn
from vllm.config import ModelConfig
from vllm.model_executor.model_loader.reload.layerwise import (
    finalize_layerwise_reload,
    get_layerwise_info,
)


@contextmanager
def undone_if_it_fails(model: nn.Module, config: ModelConfig) -> Iterator[None]:
    """Weights are loaded again meanwhile. If that raises, the model has its own tensors back, with
    whatever values, and nothing is remembered of what has been loaded.
    """
    with ExitStack() as stack:
        stack.callback(_undo, model, config)
        yield
        stack.pop_all()


def _undo(model: nn.Module, config: ModelConfig) -> None:
    for layer in model.modules():
        info = get_layerwise_info(layer)
        if info.can_load():
            info.load_numel = 0
            info.loaded_weights.clear()
    finalize_layerwise_reload(model, config)  # type: ignore[no-untyped-call]
