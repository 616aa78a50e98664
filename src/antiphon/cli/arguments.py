"""The parser's own manners, and the options that several commands share."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import NoReturn

from antiphon.errors import InvalidRequestError
from antiphon.pipeline.deployment import ALL_STAGES

_STAGE = re.compile(r"[a-z0-9_-]+")  # what a stage's name may be: no path with a = in it


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Examples as they were written, and defaults behind the options that have a telling one."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        telling = action.default not in (None, False, [], argparse.SUPPRESS)
        return f"{text} (default: %(default)s)" if telling and action.option_strings else text


class Parser(argparse.ArgumentParser):
    """Reports a wrong command line as an error of the caller, so that it is one line."""

    def error(self, message: str) -> NoReturn:
        raise InvalidRequestError(f"{message}; see {self.prog} --help")


def whole_number(text: str) -> int:
    """An integer of at least 1, for argparse."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return value


def whole_numbers(text: str) -> tuple[int, ...]:
    """Integers of at least 1 between commas, for argparse: sorted, each once."""
    return tuple(sorted({whole_number(part.strip()) for part in text.split(",")}))


def positive_number(text: str) -> float:
    """A finite number above 0, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return value


def stage_model(text: str) -> tuple[str, str]:
    """Stage and checkpoint of "STAGE=FOLDER", or of "FOLDER", which is for all; for argparse."""
    stage, equals, model = text.partition("=")
    if not equals or not _STAGE.fullmatch(stage):
        stage, model = ALL_STAGES, text
    if not model.strip():
        raise argparse.ArgumentTypeError(f"{text!r} names no folder")
    return stage, model


def stage_count(text: str) -> tuple[str, int]:
    """Stage and number of "STAGE=N", for argparse."""
    stage, equals, number = text.partition("=")
    if not equals or not _STAGE.fullmatch(stage):
        raise argparse.ArgumentTypeError(f"{text!r} is not STAGE=N, such as talker=2")
    return stage, whole_number(number)


def add_verbose(parser: argparse.ArgumentParser, default: bool | str) -> None:
    """`-v`, which works before and behind the command's name."""
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        default=default,
        help="say more: progress line by line, the stages' logs, and tracebacks of errors",
    )


def add_raw(parser: argparse.ArgumentParser) -> None:
    """`--raw`, for the commands that speak."""
    parser.add_argument(
        "--raw",
        action="store_true",
        help="write the sound to standard output while it is made, for a player behind a pipe:"
        " 16-bit little-endian mono samples; no file without --out",
    )


def add_voice(parser: argparse.ArgumentParser) -> None:
    """`--voice`, for the commands that speak."""
    parser.add_argument(
        "--voice",
        metavar="NAME",
        help="who speaks, for pipelines with several speakers (default: the model's own choice)",
    )


def spoken_params(options: argparse.Namespace) -> dict[str, bool | int | float | str]:
    """What the options of `add_voice` tell the models: `OmniRequest.params`."""
    return {} if options.voice is None else {"speaker": options.voice}


def add_replicas(parser: argparse.ArgumentParser, otherwise: str) -> None:
    """`--replicas`, for the commands that serve for long; `otherwise` is the default in words."""
    parser.add_argument(
        "--replicas",
        type=stage_count,
        action="append",
        default=[],
        metavar="STAGE=N",
        help="copies of a stage, each in a process of its own; may be given several times"
        f" (default: {otherwise})",
    )


def add_pipeline_choice(parser: argparse.ArgumentParser) -> None:
    """Which pipeline to run, how, and what to say meanwhile."""
    parser.add_argument(
        "--pipeline",
        metavar="NAME",
        help="pipeline to run, see `antiphon pipelines` (default: the deployment's, else voice)",
    )
    parser.add_argument(
        "--deployment",
        "--config",
        type=Path,
        metavar="FILE",
        help="YAML file with settings for this machine (default: none needed)",
    )
    parser.add_argument(
        "--model",
        type=stage_model,
        action="append",
        metavar="[STAGE=]FOLDER",
        help="checkpoint of all stages, or of the one that is named; a folder or a Hugging Face"
        " repository; may be given several times (default: the deployment's, else the pipeline's)",
    )
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="show what loads meanwhile (default: on a terminal; elsewhere when a stage is ready)",
    )


def add_pipeline_options(parser: argparse.ArgumentParser) -> None:
    """What the commands share that answer or speak."""
    add_verbose(parser, argparse.SUPPRESS)
    add_pipeline_choice(parser)
    parser.add_argument(
        "--in-process",
        action="store_true",
        help="run all stages in this process, for debugging (default: one process each)",
    )
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print the deployment with every default filled in, as a file for --deployment, and"
        " start nothing",
    )
