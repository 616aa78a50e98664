"""Seam: the random generator of a request with a seed, on CPU.

Reason: after a partial prefill upstream takes the sample back by moving the generator's offset
(`_bookkeeping_sync`), which CPU generators do not have, so a seed and a prompt in chunks end the
engine's step. A generator that goes back by state has the same effect. Names used:
`InputBatch.generators`, `CachedRequestState.generator`.
Fallback: none needed once CPU generators have offsets or upstream goes back by state.
"""

from __future__ import annotations

import torch


class RewindGenerator(torch.Generator):
    """Goes back to the state it had when `mark` was called; its offset is a fiction."""

    _marked: torch.Tensor | None = None

    def mark(self) -> None:
        """Remember the state in front of a sample."""
        self._marked = self.get_state()

    def get_offset(self) -> int:
        return 0

    def set_offset(self, offset: int) -> torch.Generator:
        """Upstream asks to take the last sample back, whatever the number."""
        return self if self._marked is None else self.set_state(self._marked)


def seeded(seed: int) -> RewindGenerator:
    """A generator on CPU that starts as upstream's does for this seed."""
    generator = RewindGenerator()
    generator.manual_seed(seed)
    return generator
