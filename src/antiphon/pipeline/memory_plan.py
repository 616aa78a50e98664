"""How much memory a pipeline takes at least, counted before anything of it starts.

Weights and KV caches are there from the start on, so a machine that has less for them is refused in
one sentence, in place of stages that are killed one after the other. Payloads under way have a
bound that is rarely reached: going over the machine's memory with it is a warning. What a process
takes beside these, its code and its activations, is not counted.

Devices other than the CPU are not asked how much memory they have: that would begin to use them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphon.errors import DeploymentError

logger = logging.getLogger(__name__)

_MEMINFO = Path("/proc/meminfo")
_CGROUP_LIMITS = (  # of containers: version 2, and 1
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes of one replica of a stage."""

    name: str
    device: str
    replicas: int
    weights: int  # as they are in the checkpoint
    kv_cache: int
    payloads: int  # at most, in host memory

    @property
    def certain(self) -> int:
        """Of all replicas, on the stage's device, from the start on."""
        return self.replicas * (self.weights + self.kv_cache)

    def __str__(self) -> str:
        times = "" if self.replicas == 1 else f"{self.replicas} times "
        return (
            f"{times}{size_text(self.weights)} weights and {size_text(self.kv_cache)} KV cache on"
            f" {self.device}, at most {size_text(self.payloads)} payloads"
        )


def check_memory(stages: Sequence[StageMemory], available: int | None) -> None:
    """Raise DeploymentError if the stages on the CPU cannot fit `available` bytes; None: unknown.

    Warns if they fit without their payloads only.
    """
    if available is None:
        return
    certain = sum(stage.certain for stage in stages if stage.device == "cpu")
    if certain > available:
        each = "; ".join(f"{stage.name} {stage}" for stage in stages if stage.device == "cpu")
        raise DeploymentError(
            f"stages: weights and KV caches need {size_text(certain)} of memory, and the machine"
            f" has {size_text(available)} left ({each}); give stages a smaller kv_cache_bytes,"
            " fewer replicas, or a smaller checkpoint"
        )
    most = certain + sum(stage.replicas * stage.payloads for stage in stages)
    if most > available:
        logger.warning(
            "with all the payloads that connector_bytes allows the stages need %s of memory, and"
            " the machine has %s left",
            size_text(most),
            size_text(available),
        )


def available_bytes(
    meminfo: Path = _MEMINFO, limits: Sequence[Path] = _CGROUP_LIMITS
) -> int | None:
    """Memory that can be had without swapping, within the container's limit; None if unknown."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo.read_text(), re.MULTILINE)
    except OSError:
        return None
    if found is None:
        return None
    return min([int(found[1]) << 10, *(limit for path in limits for limit in _limit(path))])


def _limit(path: Path) -> list[int]:
    """The number in a cgroup's file; nothing if it has none, or there is no such file."""
    try:
        text = path.read_text().strip()
    except OSError:
        return []
    return [int(text)] if text.isdigit() else []


def size_text(count: int) -> str:
    """Bytes in MiB or GiB."""
    mib = count / (1 << 20)
    return f"{mib:.0f} MiB" if mib < 1024 else f"{mib / 1024:.1f} GiB"
