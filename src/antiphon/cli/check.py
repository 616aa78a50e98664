"""`antiphon check`: is the vLLM that is installed one that works?"""

from __future__ import annotations

import argparse
from typing import Any

from antiphon.cli.arguments import Formatter, add_verbose


def add_parser(commands: Any) -> None:
    """Add the command to argparse's sub-commands."""
    parser = commands.add_parser(
        "check",
        help="check the installed vLLM",
        description="Look at every name of vLLM that Antiphon relies on. Takes a few seconds.",
        formatter_class=Formatter,
    )
    add_verbose(parser, argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the table, then raise SeamMovedError if a name is not as expected."""
    import importlib.metadata
    import platform
    from itertools import groupby

    from antiphon.upstream.check import Status, require_seams, run_check
    from antiphon.upstream.contract import SEAMS
    from antiphon.upstream.version import require_vllm

    rows = run_check()
    versions = {
        "antiphon": importlib.metadata.version("antiphon"),
        "vllm": str(require_vllm()),
        "torch": importlib.metadata.version("torch"),
        "python": platform.python_version(),
    }
    print("  ".join(f"{name} {version}" for name, version in versions.items()))
    seams = {seam.name: seam for seam in SEAMS}
    width = max(len(status.value) for status in Status)
    for seam, names in groupby(rows, key=lambda row: row.seam):
        print(f"\n{seam}: {seams[seam].reason}\n  without it: {seams[seam].fallback}")
        for row in names:
            print(f"  {row.status.value:<{width}}  {row.symbol}  {row.detail}")
    print()
    require_seams(rows)
    print(f"all {len(rows)} names are as expected")
    return 0
