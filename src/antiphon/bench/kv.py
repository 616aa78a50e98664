"""`antiphon bench kv`: what it costs to move a request's KV cache from one stage to another.

The caches are those of a real engine, with SmolLM2's shape (30 layers, 3 heads of 64 numbers,
float32) and random contents; a cache's blocks lie scattered, so it crosses in many pieces. Each
round hands one over, from blocks of the engine to other blocks of it, by the code that stages run,
through two connector objects in this process; on one thread, next to a plain copy of as many bytes:
`Tensor.copy_` between two tensors that have been in use. Seconds are those that this thread
computed (`time.thread_time`) with the caches on a CPU, so that other processes do not count;
elsewhere they are elapsed time. What is counted:

    extract   `KvCaches.extract`, encode, put: from the engine's blocks to the connector's memory
    transfer  encode, put, take, decode: from one stage's snapshot to the other's
    load      check, `KvCaches.load`: from the connector's memory to the engine's blocks
    whole     all of it

On a CPU extraction views the blocks and copies at most a last one that is partly filled; it is put
that writes the bytes, so `extract` and `transfer` have that copy in common, and the whole moves
each byte twice. From a GPU they move once more, to the host. A connector keeps the pages that it
has written to; a stage's first cache of a size needs new ones, and is slower (`first`).
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from rich.console import Console
from rich.table import Table

from antiphon.bench.frame import heading, write
from antiphon.bench.kv_rounds import Cache, HandOver, Times, engine_caches
from antiphon.bench.timing import undisturbed
from antiphon.connector.registry import CONNECTORS
from antiphon.pipeline.defaults import detect_device
from antiphon.pipeline.stage_deployment import Device

ROUNDS = 15  # measured, for each size and connector
PHASES = ("extract", "transfer", "load", "whole")

_MIB = 1 << 20
# How often a phase moves each byte.
_MOVES: dict[Device, tuple[int, ...]] = {"cpu": (1, 1, 1, 2), "cuda": (2, 1, 1, 3)}


class Row(msgspec.Struct, frozen=True):
    """One phase of handing caches of one size over; times are medians over the rounds."""

    phase: str
    connector: str
    cache_mib: float
    bytes: int  # moved by the phase
    seconds: float
    gb_per_s: float  # 1e9 bytes moved per second
    copy_ratio: float  # over the plain copy's rate in the same round
    copy_gb_per_s: float  # the plain copy's
    rounds: int
    exact: bool  # whether the loaded cache was the one that had left, bit for bit


class First(msgspec.Struct, frozen=True):
    """A connector's first cache of a size, for which it needs new pages; measured once."""

    connector: str
    cache_mib: float
    extract_s: float
    copy_ratio: float


def main(json_path: Path | None, sizes_mib: Sequence[int]) -> int:
    """Measure, print a table, write the results if a path is given.

    The exit code: 1 if a cache did not arrive as it had left.
    """
    for name in ("vllm", "torch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)  # before the engine is made, which allows no change
    with Console(stderr=True).status("measuring"):
        rows, firsts = measure(sizes_mib, ROUNDS)
    console = Console()
    console.print(_table(rows))
    for first in firsts:
        console.print(
            f"the first of {first.cache_mib:g} MiB by {first.connector}, into new pages: extract"
            f" {first.extract_s * 1e3:.1f} ms, ratio {first.copy_ratio:.2f}",
            style="dim",
            highlight=False,
        )
    console.print(heading(), style="dim")
    for row in rows:
        if not row.exact and row.phase == PHASES[-1]:
            text = f"{row.cache_mib:g} MiB by {row.connector}: what arrived is not what had left"
            console.print(text, style="bold red", highlight=False)
    if json_path is not None:
        write(json_path, rows, first=firsts)
    return 0 if all(row.exact for row in rows) else 1


def measure(sizes_mib: Sequence[int], rounds: int) -> tuple[list[Row], list[First]]:
    """Rows for caches of at least these sizes, in whole blocks."""
    device = detect_device()
    rows: list[Row] = []
    firsts: list[First] = []
    with engine_caches(max(sizes_mib) * _MIB, device) as caches, undisturbed():
        for size in sizes_mib:
            cache = Cache(caches, size * _MIB)
            for kind in CONNECTORS:
                with HandOver(cache, kind, device) as over:
                    first, *times = over.rounds(rounds)
                    rows += rows_of(kind, cache.nbytes, times, _MOVES[device], exact=over.exact)
                    firsts.append(first_of(kind, cache.nbytes, first, times))
    return rows, firsts


def rows_of(
    connector: str, nbytes: int, times: Sequence[Times], moves: Sequence[int], *, exact: bool
) -> list[Row]:
    """A row for each phase, which moves the cache's bytes as often as `moves` says."""
    rows = []
    copy_s = statistics.median(round_.copy for round_ in times)
    for index, (phase, often) in enumerate(zip(PHASES, moves, strict=True)):
        taken = [round_.phases()[index] for round_ in times]
        ratios = [often * round_.copy / t for round_, t in zip(times, taken, strict=True)]
        seconds = statistics.median(taken)
        rows.append(
            Row(
                phase=phase,
                connector=connector,
                cache_mib=round(nbytes / _MIB, 1),
                bytes=often * nbytes,
                seconds=seconds,
                gb_per_s=round(often * nbytes / seconds / 1e9, 3),
                copy_ratio=round(statistics.median(ratios), 4),
                copy_gb_per_s=round(nbytes / copy_s / 1e9, 3),
                rounds=len(times),
                exact=exact,
            )
        )
    return rows


def first_of(connector: str, nbytes: int, first: Times, times: Sequence[Times]) -> First:
    """The first round, next to the plain copies of the others, which had no new pages to find."""
    extract = first.phases()[0]
    copy_s = statistics.median(round_.copy for round_ in times)
    return First(connector, round(nbytes / _MIB, 1), extract, round(copy_s / extract, 4))


def _table(rows: Sequence[Row]) -> Table:
    table = Table(title="handing a KV cache over, next to a plain copy of as many bytes")
    table.add_column("phase")
    table.add_column("by")
    for column in ("MiB", "MB moved", "ms", "GB/s", "plain", "ratio"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row.phase,
            row.connector,
            f"{row.cache_mib:g}",
            f"{row.bytes / 1e6:.0f}",
            f"{row.seconds * 1e3:.2f}",
            f"{row.gb_per_s:.2f}",
            f"{row.copy_gb_per_s:.2f}",
            f"{row.copy_ratio:.2f}",
            end_section=row.phase == PHASES[-1],
        )
    table.caption = (
        "extract: from blocks to the connector; transfer: encode, put, take, decode\n"
        "load: from the connector to blocks; whole: all, put counted once\n"
        "plain: GB/s of a plain copy; ratio: over it; medians over the rounds"
    )
    return table
