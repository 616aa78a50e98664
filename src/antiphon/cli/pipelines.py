"""`antiphon pipelines [NAME]`: list the pipelines, or draw one."""

from __future__ import annotations

import argparse
from typing import Any

from antiphon.cli.arguments import Formatter, add_verbose


def add_parser(commands: Any) -> None:
    """Add the command to argparse's sub-commands."""
    parser = commands.add_parser(
        "pipelines",
        help="list the pipelines, or draw one",
        description="List the pipelines, or draw one: its stages, edges, adapters and entries.",
        formatter_class=Formatter,
    )
    add_verbose(parser, argparse.SUPPRESS)
    parser.add_argument("name", nargs="?", metavar="NAME", help="the pipeline to draw")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """A pipeline that cannot be loaded is listed with the reason; drawing it is an error."""
    from antiphon.errors import AntiphonError
    from antiphon.pipeline.draw import draw, summary
    from antiphon.pipeline.registry import load_pipeline, pipeline_targets

    if options.name is not None:
        print(draw(load_pipeline(options.name)))
        return 0
    for name in pipeline_targets():
        try:
            print(summary(load_pipeline(name)))
        except AntiphonError as error:
            print(f"{name}  cannot be loaded: {error}")
    return 0
