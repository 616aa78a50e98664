"""`antiphon trace [ID]`: where the time of a request of a running server went."""

from __future__ import annotations

import argparse
import io
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from antiphon import env
from antiphon.cli.arguments import Formatter, add_verbose, whole_number

if TYPE_CHECKING:
    from rich.console import Console

URL = "http://127.0.0.1:8000"
_WIDE = 100  # cells: there is room for more than the most important
_PATH = "/v1/antiphon/traces"


def add_parser(commands: Any) -> None:
    """Add the command to argparse's sub-commands."""
    parser = commands.add_parser(
        "trace",
        help="show where the time of a server's request went",
        description="Draw a request of a running server as a timeline: when each stage waited and\n"
        "ran, and what crossed the edges. Without ID the latest requests are listed.",
        formatter_class=Formatter,
    )
    add_verbose(parser, argparse.SUPPRESS)
    parser.add_argument(
        "id", nargs="?", metavar="ID", help="the request, by its id or by the caller's own"
    )
    parser.add_argument("--url", default=URL, help="the server")
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"the server's key, if it asks for one (default: {env.API_KEY}, else none)",
    )
    parser.add_argument("--json", action="store_true", help="print what the server says as JSON")
    parser.add_argument(
        "--limit", type=whole_number, default=20, metavar="N", help="how many requests to list"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Raises as `ask.get` and `ask.decoded`."""
    from antiphon.cli import ask

    if options.id is None:
        path = f"{_PATH}?limit={options.limit}"
    else:
        path = f"{_PATH}/{quote(options.id, safe='', errors='replace')}"
    body = ask.get(options.url, path, options.api_key or env.api_key())
    if options.json:
        print(ask.indented(body))
    elif options.id is None:
        _list(body, options.url)
    else:
        _draw(body, options.url)
    return 0


def _draw(body: bytes, url: str) -> None:
    from rich.text import Text

    from antiphon.cli import timeline
    from antiphon.cli.ask import decoded
    from antiphon.observe.record import Timeline

    console = _console()
    for line in timeline.draw(decoded(body, Timeline, url), console.width):
        text = Text(line if _unicode(console) else line.translate(timeline.PLAIN))
        for symbol, style in timeline.STYLES.items():
            text.highlight_words([symbol], style)
        console.print(text)


def _list(body: bytes, url: str) -> None:
    from rich import box
    from rich.table import Table

    from antiphon.cli.ask import decoded
    from antiphon.cli.timeline import ended, printable, seconds
    from antiphon.observe.timelines import Listed

    found = decoded(body, Listed, url).data
    if not found:
        print("no request has ended yet")
        return
    console = _console()
    firsts = console.width >= _WIDE
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("ended", no_wrap=True)
    table.add_column("id", overflow="fold")  # what gives way, without losing a character
    for column in ("request", "outcome"):
        table.add_column(column, no_wrap=True)
    for column in ("total", *(("TTFT", "TTFA") if firsts else ())):
        table.add_column(column, no_wrap=True, justify="right")
    labels: set[str] = set()
    for one in found:
        # The caller's label is what the caller knows; it leads to the latest that had it.
        name = one.id if one.label is None or one.label in labels else one.label
        labels.add(name)
        at = datetime.fromtimestamp(one.started_unix_s + one.total_s).strftime("%H:%M:%S")
        times = (one.total_s, *((one.ttft_s, one.ttfa_s) if firsts else ()))
        outcome = ended(one.outcome, one.cause)
        request = f"{one.entry} {one.pipeline}"
        table.add_row(at, printable(name), request, outcome, *(seconds(s) for s in times))
    console.print(table)


def _console() -> Console:
    from rich.console import Console

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a label may have what the terminal has not
    return Console(highlight=False, markup=False, emoji=False)


def _unicode(console: Console) -> bool:
    return console.encoding.startswith("utf")
