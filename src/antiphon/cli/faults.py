"""`antiphon faults [ROW]`: what goes wrong, and what happens then."""

from __future__ import annotations

import argparse
import sys
import textwrap
from typing import Any

from antiphon.cli.arguments import Formatter, add_verbose

_EXAMPLES = """examples:
  antiphon faults                            every fault, on a terminal one below the other
  antiphon faults stage-sigkill-loaded       one of them
  antiphon faults > faults.md                all as tables in Markdown, as in docs/faults.md
"""
_NAME = 16  # columns
_WIDTH = 100


def add_parser(commands: Any) -> None:
    """Add the command to argparse's sub-commands."""
    parser = commands.add_parser(
        "faults",
        help="print what goes wrong on a machine that serves, and what happens then",
        description="Print the fault matrix: for each fault which requests fail, with which error,"
        " how fast, what is started again, what /health says, what is left, and the test that"
        " provokes it. Nothing is run.",
        epilog=_EXAMPLES,
        formatter_class=Formatter,
    )
    add_verbose(parser, argparse.SUPPRESS)
    parser.add_argument("row", nargs="?", metavar="ROW", help="the fault to print, by its name")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Raises InvalidRequestError for a fault that is not in the table."""
    from antiphon.errors import InvalidRequestError
    from antiphon.pipeline.suggest import did_you_mean
    from antiphon.testing.fault_docs import render
    from antiphon.testing.fault_table import FAULTS, FAULTS_LIST

    if options.row is not None:
        if (fault := FAULTS.get(options.row)) is None:
            raise InvalidRequestError(
                f"there is no fault {options.row!r}{did_you_mean(options.row, FAULTS)}"
            )
        print(_told(fault))
    elif sys.stdout.isatty():
        print("\n\n".join(map(_told, FAULTS_LIST)))
    else:
        print(render(), end="")
    return 0


def _told(fault: Any) -> str:
    """A fault in lines of a name and a text."""
    from antiphon.testing.fault_docs import health, how_fast, who

    lines = {
        "hits": fault.target,
        "who fails": who(fault),
        "how fast": how_fast(fault),
        "started again": fault.restarted or "nothing",
        "/health": health(fault),
        "what is left": f"{fault.left} ({fault.checked})",
        "test": " ".join(fault.tests),
    }
    head = textwrap.fill(f"{fault.id}: {fault.what}", _WIDTH)
    return "\n".join([head, *(_line(name, text) for name, text in lines.items())])


def _line(name: str, text: str) -> str:
    indent = " " * (_NAME + 2)
    first = f"  {name:<{_NAME}}"
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
