"""Side outputs that the runner itself provides, for any model: token ids, hidden states after given
layers, frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from vllm.config import VllmConfig
from vllm.model_executor.model_loader.utils import get_model_cls
from vllm.model_executor.models.interfaces import supports_eagle3

from antiphon.errors import DeploymentError, TopologyError
from antiphon.payload.adapters import FRAMES, INPUT_IDS, layer_output
from antiphon.payload.types import Field, per_token

_LAYER = layer_output(0).removesuffix("0")


class StepOutputs:
    """Which of them a stage's edges want. Raises TopologyError for a layer that is no number."""

    def __init__(self, names: Iterable[str]) -> None:
        wanted = frozenset(names)
        self.input_ids = INPUT_IDS in wanted
        self.frames = FRAMES in wanted
        layers = {name for name in wanted if name.startswith(_LAYER)}
        numbers = sorted(_layer(name) for name in layers)
        # Not through upstream's interface: it gives the tensor itself, which its first layers go
        # on adding to, in place where a kernel can.
        self.embeddings = 0 in numbers
        self.layers = tuple(number for number in numbers if number)
        self._embeddings: torch.Tensor | None = None
        self.of_model = wanted - layers - {INPUT_IDS, FRAMES}
        """Names of those that the model's forward has to return."""

    def keep_embeddings(self, embeds: torch.Tensor) -> None:
        """The step's input embeddings [num_tokens, hidden], which nobody else writes to."""
        self._embeddings = embeds

    def fields(
        self,
        num_tokens: int,
        input_ids: torch.Tensor,
        layers: Sequence[torch.Tensor] | None,
        frames: torch.Tensor | None,
    ) -> Mapping[str, Field]:
        """Those of a step. `input_ids` [at least num_tokens]; `layers` [num_tokens, hidden] in the
        order of `self.layers`; `frames` [num_tokens, frame_size] or None.
        """
        made = {}
        if self.input_ids:
            made[INPUT_IDS] = per_token(input_ids[:num_tokens].long())
        if self.layers and layers is not None:
            names = map(layer_output, self.layers)
            made |= {name: per_token(rows) for name, rows in zip(names, layers, strict=True)}
        if self._embeddings is not None:
            made[layer_output(0)] = per_token(self._embeddings)
            self._embeddings = None
        if frames is not None:
            made[FRAMES] = per_token(frames)
        return made


def _layer(name: str) -> int:
    number = name.removeprefix(_LAYER)
    if not number.isdecimal():
        raise TopologyError(
            f"side output '{name}' names no layer; use antiphon.payload.adapters.layer_output"
        )
    return int(number)


def check_embeddings(config: VllmConfig) -> None:
    """Raise DeploymentError if the stage cannot give its input embeddings: where they are made of
    token ids in the forward, one worker alone cannot make them again.
    """
    workers = config.parallel_config.world_size
    # A model that takes media is given embeddings, on every worker; with limits of 0 it takes none.
    if workers > 1 and not config.model_config.supports_multimodal_inputs:
        raise DeploymentError(
            f"an edge wants the stage's input embeddings, which {workers} workers compute together;"
            " set tensor_parallel_size to 1"
        )


def check_layers(config: VllmConfig, layers: tuple[int, ...]) -> None:
    """Raise TopologyError if the stage's model cannot give hidden states after these layers."""
    model = get_model_cls(config.model_config)
    total = config.model_config.get_total_num_hidden_layers()
    if not supports_eagle3(model):
        raise TopologyError(
            f"an edge wants hidden states after layers {list(layers)}, and {model.__name__} does"
            f" not support vLLM's auxiliary hidden states (SupportsEagle3)"
        )
    if layers[-1] > total:
        raise TopologyError(f"an edge wants hidden states after layer {layers[-1]} of {total}")
    if config.speculative_config is not None:
        raise TopologyError("an edge wants hidden states, which drafts of this stage use already")
