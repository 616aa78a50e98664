"""vLLM's own weight loader, for which an incomplete checkpoint is an error.

Seam: vLLM's registry of model loaders. What it loads and how is upstream's.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Generator

import torch
from torch import nn
from vllm.config import ModelConfig
from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from antiphon.core.options import WHOLE_WEIGHTS
from antiphon.errors import ModelUnavailableError
from antiphon.worker.reload import as_at_first
from antiphon.worker.whole_weights import every_weight


class WholeLoader(DefaultModelLoader):
    """Registered as the load format `WHOLE_WEIGHTS`."""

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(dataclasses.replace(load_config, load_format="auto"))

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        """Raises ModelUnavailableError if the checkpoint lacks a weight of the model.

        What a quantized model is made of is upstream's to know.
        """
        if model_config.quantization is not None:
            super().load_weights(model, model_config)
            return
        self.enable_weights_track = False  # its errors are untyped, and say less
        try:
            with every_weight(model):
                super().load_weights(model, model_config)
        except ModelUnavailableError as error:
            raise ModelUnavailableError(f"{model_config.model}: {error}") from error

    def get_all_weights(
        self, model_config: ModelConfig, model: nn.Module
    ) -> Generator[tuple[str, torch.Tensor], None, None]:
        """Read at the start, and again after a sleep that has dropped them: the same then."""
        yield from as_at_first(model, super().get_all_weights(model_config, model))


@functools.cache  # upstream warns of a second time
def register() -> None:
    """Tell vLLM; may be called again."""
    register_model_loader(WHOLE_WEIGHTS)(WholeLoader)
