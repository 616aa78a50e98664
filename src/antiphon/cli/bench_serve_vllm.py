"""`antiphon bench serve-vllm`: starts our server and vLLM's own, of one checkpoint."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.cli.arguments import add_pipeline_choice, whole_number, whole_numbers

if TYPE_CHECKING:
    from antiphon.bench.serve_vllm import Row
    from antiphon.cli.setup import Setup


def add_options(parser: argparse.ArgumentParser) -> None:
    """What this benchmark adds to the options of all."""
    parser.add_argument(
        "--concurrency",
        type=whole_numbers,
        default="8",
        metavar="N,N,…",
        help="callers at once, one row for each number",
    )
    parser.add_argument(
        "--rounds", type=whole_number, default=5, metavar="N", help="pairs of rounds for each row"
    )
    parser.add_argument(
        "--requests", type=whole_number, default=64, metavar="N", help="calls of a round"
    )
    parser.add_argument(
        "--max-tokens", type=whole_number, default=64, metavar="N", help="longest answer"
    )
    add_pipeline_choice(parser)
    parser.set_defaults(in_process=False)


def run(options: argparse.Namespace) -> int:
    """Everything that needs no engine is checked first."""
    from antiphon.cli import signals
    from antiphon.cli.bench_serve import check_client
    from antiphon.cli.setup import check_bench, prepare

    setup = prepare(options)
    check_bench(options.json)
    check_client()

    from rich.console import Console

    from antiphon.bench.frame import heading, write
    from antiphon.bench.serve_vllm import table, text_stage

    text_stage(setup.topology)

    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as folder:
        rows = signals.run(lambda: _measure(options, setup, Path(folder)))
    console = Console()
    console.print(table(rows))
    console.print(heading(), style="dim")
    if options.json is not None:
        write(options.json, rows)
    return 0


async def _measure(options: argparse.Namespace, setup: Setup, folder: Path) -> list[Row]:
    from rich.console import Console

    from antiphon.bench.serve_prompts import built_in
    from antiphon.bench.serve_vllm import Plan, measure, our_server, text_stage, vllm_server

    deployment = folder / "deployment.yaml"
    deployment.write_text(setup.config(), encoding="utf-8")
    plan = Plan(
        concurrency=options.concurrency,
        rounds=options.rounds,
        requests=options.requests,
        max_tokens=options.max_tokens,
        prompts=built_in(),
    )
    stage = text_stage(setup.topology)
    with Console(stderr=True).status("starting our server") as status:
        async with our_server(deployment, folder / "ours.log") as ours:
            status.update("starting vLLM's server")
            settings = setup.deployment.stages[stage.name]
            async with vllm_server(stage, settings, folder / "vllm.log") as vllm:
                return await measure(ours.url, vllm.url, plan, status.update)
