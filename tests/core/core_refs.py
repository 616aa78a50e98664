"""Refs as a producer makes them."""

from __future__ import annotations

from antiphon.payload.ref import Ref

EDGE = "codes"


def chunk(seq: int = 0, *, end: bool = False, edge: str = EDGE, epoch: int = 0) -> Ref:
    """A chunk with a payload under a key of its own."""
    key = f"producer/{edge}/{epoch}/{seq}"
    return Ref(uid="producer", edge=edge, seq=seq, end=end, key=key, epoch=epoch)


def end_mark(seq: int = 0, *, epoch: int = 0) -> Ref:
    """An end of stream that brings nothing else."""
    return Ref(uid="producer", edge=EDGE, seq=seq, end=True, epoch=epoch)
