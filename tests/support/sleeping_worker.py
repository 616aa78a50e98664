"""A worker on CPU whose memory is really given back when it sleeps, as a CUDA worker's is.

Named in a spec as `worker_cls`. It keeps vLLM's rules: level 1 copies weights and level 2 does not,
caches are lost, memory that sleeps must not be read, and what has been put to sleep one way is not
put to sleep another.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from antiphon.worker.cpu import ARWorker
from antiphon.worker.device import CpuOps

LOST = 3.0e3  # what lies in memory that was given back: wrong, but finite
WEIGHTS, CACHE = "weights", "kv_cache"


class SleepingOps(CpuOps):
    """Counts the bytes of memory that sleeps."""

    def __init__(self, worker: SleepingWorker) -> None:
        self._worker = worker

    @property
    def frees_memory(self) -> bool:
        return True

    def free_bytes(self) -> int:
        return sum(self._worker.size_of(tag) for tag in self._worker.asleep)


class SleepingWorker(ARWorker):
    """Of an ar stage."""

    def init_device(self) -> None:
        super().init_device()
        self.asleep: dict[str, list[torch.Tensor] | None] = {}  # by tag: the copies, if any
        self.stage_runner.device_ops = SleepingOps(self)

    def sleep(self, level: int = 1) -> None:
        if level == 2 and WEIGHTS in self.asleep:
            raise RuntimeError("an illegal memory access was encountered")
        for tag in {WEIGHTS, CACHE} - self.asleep.keys():
            keep = tag == WEIGHTS and level == 1
            self.asleep[tag] = [t.clone() for t in self._tensors(tag)] if keep else None
            for tensor in self._tensors(tag):
                tensor.data.fill_(LOST)

    def wake_up(self, tags: list[str] | None = None) -> None:
        for tag in list(self.asleep):
            if tags is None or tag in tags:
                copies = self.asleep.pop(tag)
                for tensor, copy in zip(self._tensors(tag), copies or (), strict=False):
                    tensor.data.copy_(copy)

    def size_of(self, tag: str) -> int:
        """Bytes."""
        return sum(tensor.nbytes for tensor in self._tensors(tag))

    def _tensors(self, tag: str) -> Iterator[torch.Tensor]:
        if tag == CACHE:
            yield from self.model_runner.kv_caches
        else:
            # No buffers: upstream keeps them, and engines of one process share some of theirs.
            yield from self.model_runner.get_model().parameters()

    def sizes(self) -> dict[str, int]:
        """Bytes of each kind of memory."""
        return {tag: self.size_of(tag) for tag in (WEIGHTS, CACHE)}

    def asleep_bytes(self) -> int:
        """Bytes that are given back now."""
        return sum(self.size_of(tag) for tag in self.asleep)
