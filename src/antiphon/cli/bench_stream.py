"""`antiphon bench stream`: starts the pipeline twice, with its stream edges and with full edges."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING

from antiphon.cli.arguments import add_pipeline_choice, whole_number, whole_numbers

if TYPE_CHECKING:
    from antiphon import AsyncOmni, Deployment
    from antiphon.bench.stream import Row
    from antiphon.cli.progress import StageProgress
    from antiphon.cli.setup import Setup


def add_options(parser: argparse.ArgumentParser) -> None:
    """What this benchmark adds to the options of all."""
    parser.add_argument(
        "--concurrency",
        type=whole_numbers,
        default="1,2,4,8",
        metavar="N,N,…",
        help="callers at once, one row for each number",
    )
    parser.add_argument(
        "--rounds", type=whole_number, default=3, metavar="N", help="pairs of rounds for each row"
    )
    add_pipeline_choice(parser)
    parser.set_defaults(in_process=False)


def run(options: argparse.Namespace) -> int:
    """Everything that needs no engine is checked first. 1 if the outputs are not the same."""
    from antiphon.cli import signals
    from antiphon.cli.setup import check_bench, prepare
    from antiphon.errors import InvalidRequestError

    setup = prepare(options)
    if all(edge.mode != "stream" for edge in setup.deployment.edges.values()):
        raise InvalidRequestError(
            f"no edge of pipeline {setup.topology.name} has mode stream; there is nothing to"
            " compare with full edges"
        )
    check_bench(options.json)

    from rich.console import Console

    from antiphon.bench.frame import heading, write
    from antiphon.bench.stream import table

    rows = signals.run(lambda: _measure(options, setup))
    console = Console()
    console.print(table(rows))
    console.print(heading(), style="dim")
    if options.json is not None:
        write(options.json, rows)
    return 0 if all(row.same_output for row in rows) else 1


async def _measure(options: argparse.Namespace, setup: Setup) -> list[Row]:
    from rich.console import Console

    from antiphon.bench.stream import measure
    from antiphon.cli.progress import StageProgress

    async with contextlib.AsyncExitStack() as stack:
        with StageProgress(options.progress, verbose=options.verbose) as progress:
            stream = await _start(stack, setup, setup.deployment, "stream", progress)
            full = await _start(stack, setup, full_edges(setup.deployment), "full", progress)
        with Console(stderr=True).status("measuring") as status:
            return await measure(stream, full, options.concurrency, options.rounds, status.update)


async def _start(
    stack: contextlib.AsyncExitStack,
    setup: Setup,
    deployment: Deployment,
    name: str,
    progress: StageProgress,
) -> AsyncOmni:
    """A pipeline that serves, closed with `stack`."""
    from antiphon import AsyncOmni
    from antiphon.bench.stream import ENTRY

    omni = AsyncOmni(
        setup.topology,
        deployment=deployment,
        entries=(ENTRY,),
        inputs=("text",),
        on_progress=lambda stage, phase: progress(f"{name} edges, {stage}", phase),
    )
    stack.push_async_callback(omni.close)
    await omni.start()
    return omni


def full_edges(deployment: Deployment) -> Deployment:
    """The same with `mode: full` on every edge; `deployment` has its defaults filled in."""
    import msgspec

    edges = {
        name: msgspec.structs.replace(edge, mode="full") for name, edge in deployment.edges.items()
    }
    return msgspec.structs.replace(deployment, edges=edges)
