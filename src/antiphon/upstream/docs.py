"""Writes the table of upstream symbols: `python -m antiphon.upstream.docs FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

from antiphon.upstream.contract import SEAMS
from antiphon.upstream.symbols import Seam, Symbol
from antiphon.upstream.version import SUPPORTED

_HEAD = f"""\
# Upstream symbols

Generated from `src/antiphon/upstream/contract.py` by `make docs`; do not edit.

Every private or unstable name of vLLM ({SUPPORTED}), and of transformers' models, that Antiphon
relies on, by seam. `antiphon check` verifies the list against what is installed, `tests/upstream`
also the behaviour relied on. A hook is a name that upstream looks for on objects of ours.
"""


def render() -> str:
    """The page as Markdown."""
    return "\n".join([_HEAD, *(_section(seam) for seam in SEAMS)])


def _section(seam: Seam) -> str:
    lines = [
        f"## {seam.name.capitalize()}",
        "",
        f"Reason: {seam.reason}.",
        f"Fallback: {seam.fallback}.",
        "",
        "| name | kind | module |",
        "|---|---|---|",
        *(_row(symbol) for symbol in seam.symbols()),
        "",
    ]
    return "\n".join(lines)


def _row(symbol: Symbol) -> str:
    called = "" if symbol.signature is None else f"({', '.join(symbol.signature)})"
    return f"| `{symbol.qualname}{called}` | {symbol.kind} | `{symbol.module}` |"


def main(arguments: list[str]) -> int:
    """Write the page to the file named by the one argument."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m antiphon.upstream.docs FILE\n")
        return 2
    Path(arguments[0]).write_text(render(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
