"""`antiphon serve`: a pipeline behind OpenAI's API."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from antiphon import env
from antiphon.cli.arguments import (
    Formatter,
    add_pipeline_choice,
    add_replicas,
    add_verbose,
    positive_number,
    whole_number,
)
from antiphon.errors import InvalidRequestError, SettingError
from antiphon.pipeline.suggest import did_you_mean

if TYPE_CHECKING:
    from antiphon.orchestrator.omni import AsyncOmni
    from antiphon.pipeline.topology import Topology
    from antiphon.serve.settings import ServeSettings

_ORIGIN = re.compile(r"https?://[^/\s]+")

_EXAMPLES = """examples:
  antiphon serve                               the voice pipeline on http://127.0.0.1:8000
  antiphon serve --pipeline qwen3-omni --model FOLDER --host 0.0.0.0 --api-key SECRET
  antiphon serve --modalities text             only what text needs
  antiphon serve --replicas talker=2           a stage twice
  curl http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' \\
    -d '{"model": "voice", "messages": [{"role": "user", "content": "Why is the sky blue?"}]}'

In a browser the address shows a page to try the pipeline. SIGTERM takes no new calls, lets those
that are open end, and stops; a second one stops at once.
"""


def add_parser(commands: Any) -> None:
    """Add the command to argparse's sub-commands."""
    parser = commands.add_parser(
        "serve",
        help="serve a pipeline over HTTP and WebSocket, as OpenAI's API",
        description="Serve a pipeline over HTTP and WebSocket, as OpenAI's API.",
        epilog=_EXAMPLES,
        formatter_class=Formatter,
    )
    add_verbose(parser, argparse.SUPPRESS)
    add_pipeline_choice(parser)
    parser.add_argument(
        "--modalities",
        metavar="LIST",
        help="what is to be given, with commas between: only stages that it needs are started"
        " (default: all that the pipeline gives)",
    )
    add_replicas(parser, "the deployment's, else 1")
    _add_address(parser)
    _add_limits(parser)
    parser.add_argument(
        "--otlp-endpoint",
        metavar="URL",
        help="send OpenTelemetry traces of every request to this collector, OTLP over HTTP, such as"
        " http://127.0.0.1:4318 (default: none; needs antiphon[tracing])",
    )
    parser.set_defaults(run=run, in_process=False)


def _add_address(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("address and access")
    group.add_argument("--host", default="127.0.0.1", help="address to listen on")
    group.add_argument(
        "--port",
        type=_port,
        default=8000,
        metavar="N",
        help="port to listen on; 0 takes a free one",
    )
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"what callers have to give as a bearer token (default: {env.API_KEY}, else nothing)",
    )
    group.add_argument(
        "--served-model-name", metavar="NAME", help="model in calls (default: the pipeline's name)"
    )
    group.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="web page that may call, besides the server's own, such as https://example.org; * is"
        " any; may be given several times",
    )
    group.add_argument(
        "--admin",
        action="store_true",
        help="allow /admin/…: sleep, wake, abort, inspect; drain, rejoin and restart a replica",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits")
    group.add_argument(
        "--max-queued",
        type=_count,
        default=64,
        metavar="N",
        help="calls that may wait at each stage beyond those that it serves; further ones get 429",
    )
    group.add_argument(
        "--max-connections",
        type=whole_number,
        default=512,
        metavar="N",
        help="calls that may be open at a time, WebSockets included; further ones get 503",
    )
    group.add_argument(
        "--max-body-mib", type=whole_number, default=32, metavar="N", help="largest body in MiB"
    )
    group.add_argument(
        "--max-audio-s",
        type=positive_number,
        default=600.0,
        metavar="S",
        help="longest sound of one call",
    )
    group.add_argument(
        "--deadline-s",
        type=positive_number,
        metavar="S",
        help="seconds a call may take that says nothing else with the header X-Deadline-S"
        " (default: no end)",
    )
    group.add_argument(
        "--drain-timeout-s",
        type=positive_number,
        default=30.0,
        metavar="S",
        help="seconds that open calls may go on after SIGTERM",
    )


def run(options: argparse.Namespace) -> int:
    """Everything that needs no engine is checked first."""
    from antiphon.cli.progress import StageProgress
    from antiphon.cli.setup import check_installation, prepare

    setup = prepare(options, options.replicas)
    check_installation()
    _check_libraries()
    modalities = _modalities(options.modalities, setup.topology)
    settings = _settings(options)

    from antiphon.orchestrator.omni import AsyncOmni
    from antiphon.serve.run import bind, serve
    from antiphon.serve.service import Service

    loading = StageProgress(options.progress, verbose=options.verbose)
    omni = AsyncOmni(
        setup.topology,
        deployment=msgspec.structs.replace(setup.deployment, metrics=True),
        modalities=modalities,
        on_progress=loading,
        max_queued=settings.max_queued,
        on_notice=_say,
    )

    async def main() -> None:
        listening = bind(settings.host, settings.port)
        await serve(Service(omni, settings), listening, _say, loading)

    with _traced(omni, options.otlp_endpoint):
        asyncio.run(main())
    return 0


@contextlib.contextmanager
def _traced(omni: AsyncOmni, endpoint: str | None) -> Iterator[None]:
    """Send what the pipeline does to a collector, if there is one; the last spans leave at the end.

    Raises as `Tracing.to`.
    """
    if endpoint is None:
        yield
        return
    from antiphon.observe.tracing import Tracing

    tracing = Tracing.to(endpoint)
    omni.observe(tracing)
    try:
        yield
    finally:
        tracing.close()


def _settings(options: argparse.Namespace) -> ServeSettings:
    from antiphon.serve.settings import MIB, ServeSettings

    if options.api_key == "":
        raise InvalidRequestError("--api-key is empty, so that everybody could call; leave it out")
    for origin in options.allow_origin:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise InvalidRequestError(
                f"--allow-origin {origin!r} is no origin; give one such as https://example.org"
            )
    return ServeSettings(
        host=options.host,
        port=options.port,
        api_key=options.api_key or env.api_key(),
        served_model_name=options.served_model_name,
        admin=options.admin,
        allow_origins=tuple(options.allow_origin),
        max_queued=options.max_queued,
        max_connections=options.max_connections,
        max_body_bytes=options.max_body_mib * MIB,
        max_audio_s=options.max_audio_s,
        default_deadline_s=options.deadline_s,
        drain_timeout_s=options.drain_timeout_s,
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _modalities(text: str | None, topology: Topology) -> list[str] | None:
    """What is to be given. Raises InvalidRequestError for what no entry gives."""
    if text is None:
        return None
    possible = dict.fromkeys(
        modality for entry in topology.entries for modality in topology.outputs_from(entry.name)
    )
    wanted = [part.strip() for part in text.split(",") if part.strip()]
    if not wanted:
        raise InvalidRequestError(f"--modalities names nothing; give some of {', '.join(possible)}")
    for modality in wanted:
        if modality not in possible:
            raise InvalidRequestError(
                f"--modalities: pipeline {topology.name} does not give {modality!r}"
                f"{did_you_mean(modality, possible)}"
            )
    return wanted


def _check_libraries() -> None:
    """Raise SettingError if the libraries of the server are not installed."""
    for module in ("av", "fastapi", "multipart", "prometheus_client", "uvicorn", "websockets"):
        if importlib.util.find_spec(module) is None:
            raise SettingError(f"{module} is not installed; pip install 'antiphon[serve]'")


def _port(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= value <= 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; give a number from 0 to 65535")
    return value


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)
