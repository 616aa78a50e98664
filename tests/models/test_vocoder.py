"""What stages that decode have in common, with decoders that can be checked by eye."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn
from vllm.model_executor.models.interfaces import is_attention_free
from vllm.model_executor.models.interfaces_base import get_attn_type, is_pooling_model
from vllm.model_executor.models.registry import ModelRegistry
from vllm.pooling_params import PoolingParams
from vllm.v1.pool.metadata import PoolingMetadata, PoolingStates

from antiphon.models.codec_lm import register as codec_lm
from antiphon.models.frame_codes import LEFT
from antiphon.models.imagine import register as imagine
from antiphon.models.qwen2_5_omni import register as qwen2_5_omni
from antiphon.models.qwen3_omni import register as qwen3_omni
from antiphon.models.qwen3_tts import register as qwen3_tts
from antiphon.models.vocoder import FramePooler, Prompt, WaveformPooler
from antiphon.models.voice import register as voice
from antiphon.upstream.plugin import register


def pool(
    pooler: WaveformPooler, codes: Sequence[Sequence[int]], left: Sequence[int | None]
) -> list[list[float]]:
    """The waveforms of one step's requests."""
    extras = [None if count is None else {LEFT: count} for count in left]
    metadata = PoolingMetadata(
        prompt_lens=torch.tensor([len(own) for own in codes]),
        prompt_token_ids=None,
        prompt_token_ids_cpu=None,
        pooling_params=[PoolingParams(task="plugin", extra_kwargs=extra) for extra in extras],
        pooling_states=[PoolingStates() for _ in codes],
    )
    ids = torch.tensor([code for own in codes for code in own], dtype=torch.int32)
    return [wave.tolist() for wave in pooler(ids, metadata)]


class Counting(WaveformPooler):
    """A code's sound is its double; `batches` are those that were decoded together."""

    def __init__(self) -> None:
        super().__init__(nn.Identity())
        self.batches: list[list[list[int]]] = []

    def kind(self, length: int, prompt: Prompt) -> object:
        return prompt.extra.get(LEFT)

    def decode(self, codes: torch.Tensor, prompts: Sequence[Prompt]) -> list[torch.Tensor]:
        self.batches.append(codes.tolist())
        return list(2.0 * codes)


def test_prompts_that_are_alike_are_decoded_together_and_go_back_in_order() -> None:
    pooler = Counting()
    waves = pool(pooler, [[1, 2], [3], [4, 5], [6, 7], [8]], [0, 0, 1, 0, 0])
    assert waves == [[2, 4], [6], [8, 10], [12, 14], [16]]
    assert pooler.batches == [[[1, 2], [6, 7]], [[3], [8]], [[4, 5]]]


class Summing(FramePooler):
    """A frame of two codes has two samples, its sum and that negated; the last `lost` are lost."""

    def __init__(self, lost: int) -> None:
        super().__init__(nn.Identity(), frame_size=2, samples=2)
        self._lost = lost

    def sound(self, frames: torch.Tensor) -> torch.Tensor:
        total = frames.sum(dim=2).double()
        waves = torch.stack([total, -total], dim=2).flatten(1)
        return waves[:, : waves.shape[1] - self._lost]


@pytest.mark.parametrize(
    ("lost", "left", "wave"),
    [
        (0, None, [3, -3, 7, -7, 11, -11]),
        (0, 1, [7, -7, 11, -11]),
        (1, 0, [3, -3, 7, -7, 11]),
        (1, 1, [-3, 7, -7, 11]),  # the tail of the window before comes first
        (1, 2, [-7, 11]),
    ],
)
def test_context_makes_no_sound_but_the_tail_before_it(
    lost: int, left: int | None, wave: list[float]
) -> None:
    assert pool(Summing(lost), [[1, 2, 3, 4, 5, 6]], [left]) == [wave]


def test_what_is_no_whole_frame_makes_no_sound() -> None:
    assert pool(Summing(0), [[1, 2, 9], [9], [3, 4]], [None] * 3) == [[3, -3], [], [7, -7]]


@pytest.mark.parametrize(
    "arch",
    [
        voice.CODE2WAV_ARCH,
        codec_lm.CODEC_ARCH,
        imagine.DRAW_ARCH,
        qwen2_5_omni.TOKEN2WAV_ARCH,
        qwen3_omni.CODE2WAV_ARCH,
        qwen3_tts.CODE2WAV_ARCH,
    ],
)
def test_vllm_knows_them_as_pooling_models_without_attention(arch: str) -> None:
    """What upstream's registry asks of a class."""
    register()
    model = ModelRegistry.models[arch].load_model_cls()
    assert is_pooling_model(model)
    assert is_attention_free(model)
    assert get_attn_type(model) == "attention_free"
