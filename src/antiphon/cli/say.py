"""`antiphon say TEXT`: speak a text; starts only the stages that speech needs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon.cli.arguments import (
    Formatter,
    add_pipeline_options,
    add_raw,
    add_voice,
    spoken_params,
)
from antiphon.errors import InvalidRequestError

if TYPE_CHECKING:
    from antiphon.cli.setup import Setup
    from antiphon.orchestrator.api import OmniRequest

ENTRY = "speech"

_EXAMPLES = """examples:
  antiphon say "Good morning." --out morning.wav
  antiphon say "Good morning." --raw | aplay -r 24000 -f S16_LE
  antiphon say "Good morning." --out morning.wav --in-process -v
  antiphon say --pipeline qwen3-tts --print-config
"""


def add_parser(commands: Any) -> None:
    """Add the command to argparse's sub-commands."""
    parser = commands.add_parser(
        "say",
        help="speak a text",
        description="Speak a text into a WAV file, a player or both, without the stages that would"
        " answer it.",
        epilog=_EXAMPLES,
        formatter_class=Formatter,
    )
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what to say")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="WAV file for the speech; needed without --raw"
    )
    add_raw(parser)
    add_voice(parser)
    add_pipeline_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Everything that needs no engine is checked first."""
    from antiphon.cli.setup import check_installation, check_raw_output, check_text, prepare

    setup = prepare(options)
    if options.print_config:
        sys.stdout.write(setup.config())
        return 0
    setup.topology.entry(ENTRY)  # another command may be the right one, whatever else is missing
    if options.text is None:
        raise InvalidRequestError("there is nothing to say; give TEXT, see antiphon say --help")
    check_text(options.text)
    if options.out is None and not options.raw:
        raise InvalidRequestError(
            "there is nowhere for the speech to go; give --out FILE, or --raw and a player behind"
            " a pipe"
        )

    from antiphon.cli import signals
    from antiphon.orchestrator.api import OmniRequest
    from antiphon.orchestrator.files import check_output_path
    from antiphon.orchestrator.wav import check_suffix

    params = spoken_params(options)
    request = OmniRequest(entry=ENTRY, text=options.text, modalities=("audio",), params=params)
    request.check(setup.topology)
    if options.raw:
        check_raw_output(setup.topology)
    if options.out is not None:
        check_suffix(options.out)
        check_output_path(options.out)
    check_installation()
    signals.run(lambda: _say(options, setup, request))
    return 0


async def _say(options: argparse.Namespace, setup: Setup, request: OmniRequest) -> None:
    from antiphon import AsyncOmni
    from antiphon.cli.answer import answer
    from antiphon.cli.pipe import PipeWriter
    from antiphon.cli.progress import StageProgress

    sound = PipeWriter(sys.stdout.fileno()) if options.raw else None
    progress = StageProgress(options.progress, verbose=options.verbose)
    omni = AsyncOmni(
        setup.topology, deployment=setup.deployment, entries=(ENTRY,), on_progress=progress
    )
    try:
        with progress:
            await omni.prepare()
            await omni.check(request)  # before the stages start: a mistake need not wait for them
            await omni.start()
        await answer(omni, request, options.out, sound)
    finally:
        await omni.close()
