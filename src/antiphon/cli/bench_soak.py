"""`antiphon bench soak`: random callers and random faults, for minutes or hours."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.cli.arguments import (
    add_pipeline_choice,
    add_replicas,
    positive_number,
    whole_number,
)

if TYPE_CHECKING:
    from antiphon.bench.soak import Plan
    from antiphon.bench.soak_record import FaultKind, Soak
    from antiphon.cli.setup import Setup

EXAMPLES = """examples:
  antiphon bench soak --minutes 15 --report docs/soak.md
  antiphon bench soak --seconds 60 --callers 4 --seed 7 --json soak.json
  antiphon bench soak --minutes 5 --faults kill,stop,sleep --replicas talker=3
"""
_FAULTS = "kill, term, stop, full, restart, drain, sleep, abort, disconnect, interrupt, bad"
_REPLICATED = "talker"  # twice, of pipelines that have it


def add_options(parser: argparse.ArgumentParser) -> None:
    """What this benchmark adds to the options of all."""
    lasts = parser.add_mutually_exclusive_group()
    lasts.add_argument(
        "--minutes", type=positive_number, default=15.0, metavar="M", help="how long it lasts"
    )
    lasts.add_argument("--seconds", type=positive_number, metavar="S", help="the same in seconds")
    parser.add_argument(
        "--callers", type=whole_number, default=6, metavar="N", help="callers at once"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="what is random follows from it"
    )
    parser.add_argument(
        "--every-s",
        type=positive_number,
        default=4.0,
        metavar="S",
        help="mean seconds from one fault to the next",
    )
    parser.add_argument(
        "--faults",
        type=faults,
        default=_FAULTS,
        metavar="LIST",
        help="which faults, between commas",
    )
    parser.add_argument(
        "--deadline-s",
        type=positive_number,
        default=60.0,
        metavar="S",
        help="of each call, but for some that are given too little time on purpose",
    )
    parser.add_argument(
        "--silence-s",
        type=positive_number,
        default=6.0,
        metavar="S",
        help="after so long without a sign of life a replica is ended",
    )
    add_replicas(parser, "the deployment's, else two of the talker")
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="also write the report, as a page in Markdown"
    )
    add_pipeline_choice(parser)
    parser.set_defaults(in_process=False)


def faults(text: str) -> tuple[FaultKind, ...]:
    """Kinds of faults between commas, for argparse: each once."""
    from antiphon.bench.soak_record import FaultKind

    known = [kind.value for kind in FaultKind]
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
    return tuple(kind for kind in FaultKind if kind.value in names)


def run(options: argparse.Namespace) -> int:
    """1 if a check fails. Ctrl-C ends the soak early, with a report so far."""
    from antiphon.bench.soak import soak
    from antiphon.cli import signals
    from antiphon.cli.setup import check_bench, prepare
    from antiphon.orchestrator.files import check_output_path
    from antiphon.orchestrator.tasks import READY

    setup = prepare(options, options.replicas)
    check_bench(options.json)
    if options.report is not None:
        check_output_path(options.report)
    plan = _plan(options, setup)
    found: list[Soak] = []

    def progress(stage: str, phase: str) -> None:
        if options.progress or options.verbose or phase.startswith(READY):
            _say(f"{stage}: {phase}")

    try:
        signals.run(
            lambda: soak(setup.topology, setup.deployment, plan, found, on_progress=progress)
        )
    except signals.Interrupted as stop:
        if not found:
            raise
        _write(options, found[0])
        return stop.exit_code
    return _write(options, found[0])


def _plan(options: argparse.Namespace, setup: Setup) -> Plan:
    from antiphon.bench.soak import Plan

    copies = dict(options.replicas)
    if not copies:
        own = any(count > 1 for count in setup.deployment.replicas.values())
        twice = not own and _REPLICATED in setup.topology.stage_names
        copies = {_REPLICATED: 2} if twice else {}
    return Plan(
        duration_s=60.0 * options.minutes if options.seconds is None else options.seconds,
        callers=options.callers,
        seed=options.seed,
        every_s=options.every_s,
        faults=options.faults,
        deadline_s=options.deadline_s,
        silence_s=options.silence_s,
        replicas=copies,
        say=_say,
    )


def _write(options: argparse.Namespace, found: Soak) -> int:
    """Print the report, and write what is asked for."""
    from antiphon.bench.soak_judge import judge
    from antiphon.bench.soak_report import report, save, save_json

    checks = judge(found)
    text = report(found, checks)
    print(text, end="")
    if options.report is not None:
        save(options.report, text)
    if options.json is not None:
        save_json(options.json, found, checks)
    return 0 if all(check.holds for check in checks) else 1


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
