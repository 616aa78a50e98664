"""How a request's further codes of a frame are chosen: the most likely ones, or by lot.

A lot depends on the request's seed and the output's index alone: not on its batch-mates, and not on
how often a token was computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch

from antiphon.errors import InvalidRequestError
from antiphon.worker.capabilities import Draw
from antiphon.worker.device import DeviceOps

KEYS = ("code_temperature", "code_top_k", "code_top_p")
"""Keys of a request's `extra_args` that change the defaults below."""

_ALL = 1 << 30  # more codes than any vocabulary has
_HOTTEST = 1e6


@dataclass(frozen=True, slots=True)
class FrameSampling:
    """Parameters of one request. The defaults are those of transformers' `Qwen3OmniMoe…generate`
    for a talker that samples.
    """

    seed: int | None = None  # None: greedy
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 0.8

    @classmethod
    def of(cls, uid: str, params: Any) -> FrameSampling:
        """Those of a request with these SamplingParams: by lot if its tokens are drawn by lot.

        Without a seed the lots are the request's own: its uid is never used again. Raises
        InvalidRequestError for values that cannot be.
        """
        extra: Mapping[str, Any] = params.extra_args or {}
        temperature = _number(extra, "code_temperature", 1.0, (0.0, _HOTTEST))
        top_k = _number(extra, "code_top_k", 50, (0, _ALL), whole=True)
        top_p = _number(extra, "code_top_p", 0.8, (1e-6, 1.0))
        if params.temperature == 0 or temperature == 0:
            return cls()
        seed = params.seed
        if seed is None:
            seed = _hash(uid)
        return cls(seed, temperature, int(top_k), top_p)

    @staticmethod
    def draw(
        requests: Sequence[FrameSampling],
        indices: Sequence[int],
        frame_size: int,
        ops: DeviceOps,
    ) -> Draw:
        """The choice for a step: of these requests, the frames of these output indices."""
        if all(request.seed is None for request in requests):
            return _most_likely
        return _Lots(requests, indices, frame_size, ops)


def _most_likely(code: int, logits: torch.Tensor) -> torch.Tensor:
    return logits.argmax(-1)


class _Lots:
    """Each request's logits, cut as it asks, against exponential noise of its own."""

    def __init__(
        self,
        requests: Sequence[FrameSampling],
        indices: Sequence[int],
        frame_size: int,
        ops: DeviceOps,
    ) -> None:
        self._requests = requests
        self._indices = indices
        self._frame_size = frame_size
        self._ops = ops
        self._noise: torch.Tensor | None = None  # [n, frame_size - 1, vocabulary]
        self._greedy = self._column([request.seed is None for request in requests])[:, 0]
        self._temperature = self._column([request.temperature for request in requests])
        self._top_k = self._column([request.top_k or _ALL for request in requests])
        self._top_p = self._column([request.top_p for request in requests])

    def _column(self, values: Sequence[float]) -> torch.Tensor:
        return self._ops.to_device(torch.tensor(values).unsqueeze(1))

    def __call__(self, code: int, logits: torch.Tensor) -> torch.Tensor:
        if self._noise is None:
            self._noise = self._draw(logits.shape[-1])
        values, ids = (logits.float() / self._temperature).sort(-1, descending=True)
        ranks = torch.arange(values.shape[-1], device=self._ops.device)
        chances = values.masked_fill(ranks >= self._top_k, -torch.inf).softmax(-1)
        # The first that passes the sum is still in, as in transformers' TopPLogitsWarper.
        chances = chances.masked_fill(chances.cumsum(-1) - chances >= self._top_p, 0.0)
        noise = self._noise[:, code - 1].gather(1, ids)
        drawn = ids.gather(1, (chances / noise).argmax(-1, keepdim=True))[:, 0]
        return torch.where(self._greedy, logits.argmax(-1), drawn)

    def _draw(self, vocabulary: int) -> torch.Tensor:
        shape = (len(self._requests), self._frame_size - 1, vocabulary)
        noise = torch.ones(shape, device=self._ops.device)
        generator = torch.Generator(self._ops.device)
        for own, request, index in zip(noise, self._requests, self._indices, strict=True):
            if request.seed is not None:
                generator.manual_seed(_hash(f"{request.seed}/{index}"))
                own.exponential_(generator=generator)
        return noise


def _hash(text: str) -> int:
    """63 bits."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def _number(
    extra: Mapping[str, Any],
    key: str,
    default: float,
    bounds: tuple[float, float],
    *,
    whole: bool = False,
) -> float:
    value, (least, most) = extra.get(key, default), bounds
    # Not a NaN either: it is in no range.
    if type(value) not in ((int,) if whole else (int, float)) or not least <= value <= most:
        kind = "whole number" if whole else "number"
        raise InvalidRequestError(f"{key} is {value!r}; give a {kind} from {least:g} to {most:g}")
    return float(value)
