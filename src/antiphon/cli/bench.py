"""`antiphon bench WHAT`: measure Antiphon's own cost."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from antiphon.cli.arguments import Formatter, add_verbose


def add_parser(commands: Any) -> None:
    """Add the command to argparse's sub-commands."""
    parser = commands.add_parser(
        "bench",
        help="measure what Antiphon costs",
        description="Measure what Antiphon costs over plain vLLM on this machine.",
        formatter_class=Formatter,
    )
    benches = parser.add_subparsers(dest="bench", metavar="WHAT", required=True)
    scheduler = benches.add_parser(
        "scheduler",
        help="host time of schedule and update, over vLLM's own scheduler",
        description="Host time of schedule and update, over vLLM's own scheduler, interleaved.",
        formatter_class=Formatter,
    )
    add_verbose(scheduler, argparse.SUPPRESS)
    scheduler.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="also write the results as JSON",
    )
    scheduler.set_defaults(run=run_scheduler)


def run_scheduler(options: argparse.Namespace) -> int:
    """Check the output path and the installation, then measure."""
    from antiphon.cli.setup import check_installation

    if options.json is not None:
        from antiphon.orchestrator.wav import check_output_path

        check_output_path(options.json)
    check_installation()
    from antiphon.bench.scheduler import main

    return main(options.json)
