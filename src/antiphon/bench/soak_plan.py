"""Which fault comes when: drawn from a seed, before anything starts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.bench.soak_record import FaultKind

WEIGHTS = {
    FaultKind.KILL: 2,
    FaultKind.TERM: 1,
    FaultKind.STOP: 3,
    FaultKind.FULL: 1,
    FaultKind.RESTART: 1,
    FaultKind.DRAIN: 1,
    FaultKind.SLEEP: 2,
    FaultKind.ABORT: 3,
    FaultKind.LEAVE: 3,
    FaultKind.INTERRUPT: 3,
    FaultKind.BAD: 2,
}
"""How often each kind comes, among those that are asked for."""

_TOO_LONG = 0.3  # of the stops: share that is longer than a silence may be


@dataclass(frozen=True, slots=True)
class Fault:
    """`index` is of the replica among all, in order; `seconds` is how long it lasts."""

    at_s: float
    kind: FaultKind
    index: int
    seconds: float

    def line(self, replicas: Sequence[str]) -> str:
        """As it is printed."""
        target = replicas[self.index] if self.kind in ON_REPLICAS else "-"
        lasts = f"{self.seconds:.1f} s" if self.kind in LASTING else "-"
        return f"{self.at_s:8.1f}  {self.kind:<11} {target:<12} {lasts}"


ON_REPLICAS = frozenset(
    {
        FaultKind.KILL,
        FaultKind.TERM,
        FaultKind.STOP,
        FaultKind.FULL,
        FaultKind.RESTART,
        FaultKind.DRAIN,
    }
)
LASTING = frozenset({FaultKind.STOP, FaultKind.FULL, FaultKind.DRAIN, FaultKind.SLEEP})


def schedule(
    seed: int,
    *,
    duration_s: float,
    every_s: float,
    kinds: Sequence[FaultKind],
    replicas: int,
    silence_s: float,
) -> list[Fault]:
    """The faults of a soak, in order; pauses are between a half and one and a half `every_s`.

    The same arguments give the same faults. A stop lasts less than `silence_s`, or clearly longer.
    """
    draw = random.Random(seed)
    weights = [WEIGHTS[kind] for kind in kinds]
    faults = []
    at_s = every_s
    while kinds and at_s < duration_s:
        kind = draw.choices(kinds, weights)[0]
        index = draw.randrange(replicas)
        faults.append(Fault(at_s, kind, index, _lasts(draw, kind, silence_s)))
        at_s += draw.uniform(0.5, 1.5) * every_s
    return faults


def _lasts(draw: random.Random, kind: FaultKind, silence_s: float) -> float:
    """Seconds; drawn for every kind, so that one kind more changes as little as may be."""
    too_long, share = draw.random() < _TOO_LONG, draw.random()
    if kind is FaultKind.STOP:
        return silence_s * (1.2 + 0.6 * share if too_long else 0.05 + 0.6 * share)
    return 0.5 + 2.5 * share
