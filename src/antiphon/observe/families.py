"""Families of metrics as they cross a process boundary. No metrics library is needed for that."""

from __future__ import annotations

import msgspec


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One series at one moment."""

    name: str
    labels: dict[str, str]
    value: float


class Family(msgspec.Struct, frozen=True, array_like=True):
    """Samples of one metric; `kind` as Prometheus names it: counter, gauge, histogram."""

    name: str
    help: str
    kind: str
    samples: list[Sample]
