"""The drawing network as a stage of vLLM: an attention-free pooling model. A prompt is one token,
the number of a variant; its pooled output is a picture, float32 [side, side, 3] from 0 to 1.

Upstream's forward pass gives one row per token, so a picture crosses it as the row of its token.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

import torch
from vllm.config import VllmConfig
from vllm.model_executor.models.utils import AutoWeightsLoader
from vllm.v1.pool.metadata import PoolingMetadata

from antiphon.models.imagine.draw_config import DrawConfig
from antiphon.models.imagine.network import DrawNetwork
from antiphon.models.vocoder import PluginPooler, PoolingModel
from antiphon.payload.kv import KvMetadata
from antiphon.worker.capabilities import Capabilities, PastKeyValues


class PicturePooler(PluginPooler):
    """Gives rows their shape back."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self._side = side

    def forward(
        self, hidden_states: torch.Tensor, pooling_metadata: PoolingMetadata
    ) -> list[torch.Tensor]:
        """`hidden_states` [num_tokens, side * side * 3]; of each request its last row."""
        ends = accumulate(pooling_metadata.prompt_lens.tolist())
        return [hidden_states[end - 1].view(self._side, self._side, 3) for end in ends]


class Draw(PoolingModel):
    """The model that vLLM loads; see the module's docstring."""

    capabilities = Capabilities(attends_to_caches=True)

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        assert isinstance(config, DrawConfig)  # noqa: S101 - the checkpoint's model_type
        self.network = DrawNetwork(config.sizes()).eval()
        self.pooler = PicturePooler(self.network.sizes.side)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: object = None,
        inputs_embeds: torch.Tensor | None = None,
        *,
        past_key_values: PastKeyValues | None = None,
        kv_metadata: list[KvMetadata | None] | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        """A picture for each cache, in the last of its request's rows; other rows are black.

        Companions are drawn one by one: how many there are changes no bit of a picture.
        """
        sizes = self.network.sizes
        rows = torch.zeros(len(input_ids), sizes.side**2 * 3, device=input_ids.device)
        for cache, about in zip(past_key_values or (), kv_metadata or (), strict=True):
            if cache is None or about is None:
                continue
            last = about.rows[1] - 1
            wanted = [cache[about.layers.index(name)] for name in sizes.kv_layers]
            rows[last] = self.network(wanted, about.next_position, input_ids[last]).flatten()
        return rows

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        loaded: set[str] = AutoWeightsLoader(self).load_weights(weights)
        return loaded
