"""`antiphon`: the parser, and what errors and signals turn into.

Exit codes: 0 done; 1 something failed while serving, or a defect; 2 the request, the settings or
the installation has to change; 130 Ctrl-C; 143 SIGTERM. An error is one line on stderr.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
import traceback
from collections.abc import Sequence

from antiphon.cli import bench, chat, check, faults, pipelines, say, serve, trace
from antiphon.cli.arguments import Formatter, Parser, add_verbose
from antiphon.cli.signals import Interrupted, interruptible
from antiphon.errors import AntiphonError, CallerError, OperatorError, UpstreamError

_EXAMPLES = """examples:
  antiphon chat "Why is the sky blue?"       answer on the terminal, speech in reply.wav
  antiphon chat "Why is the sky blue?" --raw | aplay -r 24000 -f S16_LE
  antiphon chat                              a conversation
  antiphon chat "Describe the ocean." --pipeline imagine
                                             text, and a picture in reply.png
  antiphon say "Good morning." --out hi.wav  only speech
  antiphon serve                             OpenAI's API, and a page to try it
  antiphon pipelines voice                   draw a pipeline
  antiphon trace                             what a running server did lately
  antiphon check                             is this vLLM one that works?
  antiphon faults                            what goes wrong, and what happens then
"""


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = Parser(
        prog="antiphon",
        description="Omni models on unmodified vLLM: questions in; text, speech and pictures out.",
        epilog=_EXAMPLES,
        formatter_class=Formatter,
    )
    version = importlib.metadata.version("antiphon")
    parser.add_argument("--version", action="version", version=f"antiphon {version}")
    add_verbose(parser, False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in (chat, say, serve, trace, pipelines, check, faults, bench):
        command.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    verbose = any(a in ("-v", "--verbose") for a in arguments)  # a wrong line has no namespace
    try:
        with interruptible():
            return _run(arguments)
    except Interrupted as stop:
        return _end(stop.exit_code, "interrupted")
    except BrokenPipeError:
        # The reader went away. Python would complain about the rest when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except AntiphonError as error:
        code = 2 if isinstance(error, CallerError | OperatorError | UpstreamError) else 1
        return _fail(code, str(error), verbose and code == 1)
    except Exception as error:  # noqa: BLE001 - the outermost boundary: one line, never a traceback
        return _fail(1, f"unexpected {type(error).__name__}: {error}", verbose)


def _run(arguments: list[str]) -> int:
    options = build_parser().parse_args(arguments)
    code: int = options.run(options)
    sys.stdout.flush()
    return code


def _fail(code: int, message: str, with_traceback: bool) -> int:
    if with_traceback:
        traceback.print_exc()
    return _end(code, f"error: {message}")


def _end(code: int, message: str) -> int:
    print(f"antiphon: {' '.join(message.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
