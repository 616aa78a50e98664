"""Noise that a library draws from torch's global generator, drawn from one of a request's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class OwnNoise(TorchFunctionMode):
    """While it is entered, `torch.randn` of this thread draws from a generator with this seed.

    The numbers are those after `torch.manual_seed(seed)`; the global generator, which other
    requests sample with, is not touched.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if func is torch.randn and given.get("generator") is None:
            given["generator"] = self._generator(torch.device(given.get("device") or "cpu"))
        return func(*args, **given)

    def _generator(self, device: torch.device) -> torch.Generator:
        """The one for this device; a later draw goes on where the last one ended."""
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]
