"""`antiphon bench model NAME`: a tiny checkpoint's pipeline against transformers' `generate`."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.cli.arguments import whole_number, whole_numbers

if TYPE_CHECKING:
    from antiphon.bench.model import Row

MODELS = ("qwen3-omni-tiny",)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What this benchmark adds to the options of all."""
    parser.add_argument("model", choices=MODELS, help="which model; it is made on the spot")
    parser.add_argument(
        "--batch",
        type=whole_numbers,
        default="1,8",
        metavar="N,N,…",
        help="requests at once, one row for each number",
    )
    parser.add_argument(
        "--rounds", type=whole_number, default=5, metavar="N", help="rounds for each row"
    )
    parser.add_argument(
        "--threads",
        type=whole_number,
        default=1,
        metavar="N",
        help="of transformers; each of our three stages has one",
    )


def run(options: argparse.Namespace) -> int:
    """1 if the two do not give the same sounds."""
    from antiphon.cli import signals
    from antiphon.cli.setup import check_bench

    check_bench(options.json)

    from rich.console import Console

    from antiphon.bench.frame import heading, write
    from antiphon.bench.model import table

    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as folder:
        rows = signals.run(lambda: _measure(options, Path(folder)))
    console = Console()
    console.print(table(options.model, rows))
    console.print(heading(), style="dim")
    if options.json is not None:
        write(options.json, rows)
    return 0 if all(row.same_output for row in rows) else 1


async def _measure(options: argparse.Namespace, folder: Path) -> list[Row]:
    from rich.console import Console

    from antiphon import AsyncOmni, Deployment
    from antiphon.bench.model import measure
    from antiphon.pipeline.stage_deployment import StageDeployment

    small = StageDeployment(
        dtype="float32", max_model_len=2048, max_num_seqs=max(options.batch), kv_cache_bytes="64MiB"
    )
    deployment = Deployment(
        pipeline="qwen3-omni", stages=dict.fromkeys(("thinker", "talker", "code2wav"), small)
    )
    with Console(stderr=True).status("making the checkpoint") as status:
        # torch and transformers take a while to import.
        from antiphon.bench.model_reference import prepare

        other = prepare(folder, options.threads)
        status.update("starting the stages")
        async with AsyncOmni("qwen3-omni", deployment=deployment, model=folder) as omni:
            return await measure(omni, other, options.batch, options.rounds, status.update)
