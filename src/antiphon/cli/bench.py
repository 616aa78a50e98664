"""`antiphon bench WHAT`: measure Antiphon's own cost, what streaming gains, a server, faults."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from antiphon.cli import bench_model, bench_serve, bench_serve_vllm, bench_soak, bench_stream
from antiphon.cli.arguments import Formatter, add_verbose, whole_numbers

_EXAMPLES = """examples:
  antiphon bench scheduler
  antiphon bench worker --json worker.json
  antiphon bench kv --sizes 64 --json kv.json
  antiphon bench model qwen3-omni-tiny
  antiphon bench stream --concurrency 1,4 --rounds 5 --json stream.json
  antiphon bench serve --max-concurrency 8
  antiphon bench soak --minutes 15
"""


def add_parser(commands: Any) -> None:
    """Add the command to argparse's sub-commands."""
    parser = commands.add_parser(
        "bench",
        help="measure what Antiphon costs, what streaming gains, a server under load, faults",
        description="Measure on this machine what Antiphon costs over plain vLLM, and what stream"
        " edges gain; put load on a server; or faults into a pipeline that serves.",
        epilog=_EXAMPLES,
        formatter_class=Formatter,
    )
    benches = parser.add_subparsers(dest="bench", metavar="WHAT", required=True)
    for add in (
        _add_scheduler,
        _add_worker,
        _add_kv,
        _add_model,
        _add_stream,
        _add_serve,
        _add_serve_vllm,
        _add_soak,
    ):
        add(benches)


def _add_scheduler(benches: Any) -> None:
    _add(
        benches,
        "scheduler",
        run_scheduler,
        "host time of schedule and update, over vLLM's own scheduler",
        "Host time of schedule and update, over vLLM's own scheduler, interleaved.",
    )


def _add_worker(benches: Any) -> None:
    _add(
        benches,
        "worker",
        run_worker,
        "a step's time with outputs for another stage, over one without",
        "Time of a step of a tiny engine whose requests feed another stage with tokens or\nwith"
        " hidden states, over requests that feed none; interleaved.",
    )


def _add_kv(benches: Any) -> None:
    kv = _add(
        benches,
        "kv",
        run_kv,
        "GB/s of handing a KV cache over, next to a plain memory copy",
        "Extract a KV cache from an engine's blocks, transfer it through shared memory and\nwithin"
        " the process, and load it into other blocks, next to a plain copy of as many\nbytes;"
        " interleaved. The exit code is 1 if a cache does not arrive as it had left.",
    )
    kv.add_argument(
        "--sizes",
        type=whole_numbers,
        default="16,64,256",
        metavar="N,N,…",
        help="of the caches, in MiB; rounded up to whole blocks",
    )


def _add_model(benches: Any) -> None:
    model = _add(
        benches,
        "model",
        bench_model.run,
        "a model's pipeline against transformers' generate()",
        "Answers per second and time to the first sound of a real architecture with tiny random\n"
        "weights: its pipeline against transformers' generate(), at several batch sizes; rounds\n"
        "alternate. The exit code is 1 if the two do not give the same sounds.",
    )
    bench_model.add_options(model)


def _add_stream(benches: Any) -> None:
    stream = _add(
        benches,
        "stream",
        bench_stream.run,
        "time to the first sound, stream edges over full edges",
        "Time to the first sound and to the end, and gaps in the playback: a pipeline with\nstream"
        " edges over the same one with full edges, both started here, rounds interleaved.\nTakes"
        " minutes. The exit code is 1 if the two do not give the same text and sound.",
    )
    bench_stream.add_options(stream)


def _add_serve(benches: Any) -> None:
    serve = benches.add_parser(
        "serve",
        help="a server under load, as its callers see it",
        description="Put load on a server that speaks OpenAI's API, ours or another, and report"
        " what its\ncallers see, in the layout of `vllm bench serve`: times to the first text and"
        " sound,\nbetween tokens and to the end, gaps in the playback, and what it gives in a"
        " second.\nThe exit code is 1 if a call fails.",
        epilog=bench_serve.EXAMPLES,
        formatter_class=Formatter,
    )
    add_verbose(serve, argparse.SUPPRESS)
    bench_serve.add_options(serve)
    serve.set_defaults(run=bench_serve.run)


def _add_serve_vllm(benches: Any) -> None:
    compared = _add(
        benches,
        "serve-vllm",
        bench_serve_vllm.run,
        "chat through our server, over vLLM's own server",
        "Tokens per second, time to the first and between tokens of chats in text: our server"
        " over\nvLLM's own, both started here with one checkpoint; rounds alternate. Takes"
        " minutes.",
    )
    bench_serve_vllm.add_options(compared)


def _add_soak(benches: Any) -> None:
    soak = _add(
        benches,
        "soak",
        bench_soak.run,
        "random callers and random faults on one pipeline, for minutes",
        "Start a pipeline, put callers on it, and every few seconds a fault into it; then say\n"
        "whether every call ended in time, whether one failed without a reason, whether what was\n"
        "killed serves again, and what is left. The exit code is 1 if a check fails. Ctrl-C ends"
        " it\nearly, with a report so far.",
    )
    soak.epilog = bench_soak.EXAMPLES
    bench_soak.add_options(soak)


def _add(
    benches: Any, name: str, run: Callable[[argparse.Namespace], int], summary: str, text: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = benches.add_parser(
        name, help=summary, description=text, formatter_class=Formatter
    )
    add_verbose(parser, argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results as JSON")
    parser.set_defaults(run=run)
    return parser


def run_scheduler(options: argparse.Namespace) -> int:
    """Check the output path and the installation, then measure."""
    from antiphon.cli.setup import check_bench

    check_bench(options.json)
    from antiphon.bench.scheduler import main

    return main(options.json)


def run_worker(options: argparse.Namespace) -> int:
    """Check the output path and the installation, then measure in a stage's environment."""
    _prepare_engine(options)
    from antiphon.bench.worker import main

    return main(options.json)


def run_kv(options: argparse.Namespace) -> int:
    """Check the output path and the installation, then measure in a stage's environment."""
    _prepare_engine(options)
    from antiphon.bench.kv import main

    return main(options.json, options.sizes)


def _prepare_engine(options: argparse.Namespace) -> None:
    """Check what can be checked, and adopt a stage's environment.

    The engine is in this process: its settings have to be there before vLLM is imported.
    """
    from antiphon.cli.setup import check_bench

    check_bench(options.json)
    import warnings

    from antiphon.env import adopt
    from antiphon.pipeline.defaults import detect_device
    from antiphon.pipeline.stage_deployment import StageDeployment
    from antiphon.stage.resolve import stage_environment

    adopt(stage_environment(StageDeployment(device=detect_device(), threads=1), "error"))
    if not options.verbose:
        adopt({"TORCH_CPP_LOG_LEVEL": "ERROR"})
        warnings.simplefilter("ignore", FutureWarning)
