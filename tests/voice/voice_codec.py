"""The codec decoder as plain torch, and as the pooler that vLLM calls, without an engine."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import torch
from safetensors.torch import load_file

# vLLM warns about its own dependencies while it is imported
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm.pooling_params import PoolingParams
    from vllm.v1.pool.metadata import PoolingMetadata, PoolingStates

    from antiphon.models.voice.code2wav import CodecPooler, sizes_of

from antiphon.models.code_windows import CodeWindow
from antiphon.models.voice import weights
from antiphon.models.voice.code2wav_config import Code2WavConfig
from antiphon.models.voice.codec import CodecDecoder
from antiphon.models.voice.limits import CONTEXT_CODES
from antiphon.models.voice.synthesis import synthesise
from antiphon.models.voice.vocabulary import NUM_CODES


@functools.cache
def load_decoder() -> CodecDecoder:
    """The decoder with the checkpoint's weights."""
    folder = weights.code2wav_checkpoint()
    config = json.loads((folder / "config.json").read_text())
    decoder = CodecDecoder(sizes_of(Code2WavConfig(**config))).eval()
    stored = load_file(folder / "model.safetensors")
    decoder.load_state_dict({name.removeprefix("decoder."): t for name, t in stored.items()})
    return decoder


def random_codes(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(NUM_CODES, (length,), generator=generator).tolist()


def plain_wave(codes: list[int], seed: int = 0) -> torch.Tensor:
    """One utterance at once, without the pooler."""
    with torch.inference_mode():
        spectrum, pitch = load_decoder()(torch.tensor([codes]))
    wave, _ = synthesise(spectrum[0].numpy(), pitch[0].numpy(), seed)
    return torch.from_numpy(wave)


@dataclass(frozen=True)
class Chunk:
    """A prompt of a stream: the codes of a window."""

    codes: list[int]
    window: CodeWindow


def cut(
    codes: list[int], sizes: Sequence[int], left: int = CONTEXT_CODES, right: int = CONTEXT_CODES
) -> Iterator[Chunk]:
    """The stream in chunks of these sizes, the last size again and again, with context as far as
    there is any.
    """
    first, index = 0, 0
    while first < len(codes):
        end = min(first + sizes[min(index, len(sizes) - 1)], len(codes))
        start, stop = max(0, first - left), min(end + right, len(codes))
        yield Chunk(codes[start:stop], CodeWindow(first, first - start, stop - end))
        first, index = end, index + 1


class Decoding:
    """The pooler with upstream's own metadata; a request is its state."""

    def __init__(self) -> None:
        self._pooler = CodecPooler(load_decoder(), seed=0)

    def step(self, chunks: Sequence[Chunk], states: Sequence[PoolingStates]) -> list[torch.Tensor]:
        """One chunk of each request, decoded together."""
        params = [PoolingParams(task="plugin", extra_kwargs=asdict(c.window)) for c in chunks]
        metadata = PoolingMetadata(
            prompt_lens=torch.tensor([len(chunk.codes) for chunk in chunks]),
            prompt_token_ids=None,
            prompt_token_ids_cpu=None,
            pooling_params=params,
            pooling_states=list(states),
        )
        ids = torch.tensor([code for chunk in chunks for code in chunk.codes])
        with torch.inference_mode():
            return self._pooler(ids, metadata)

    def stream(self, chunks: Iterator[Chunk]) -> torch.Tensor:
        """All chunks of one request, one after the other."""
        state = PoolingStates()
        return torch.cat([self.step([chunk], [state])[0] for chunk in chunks])
