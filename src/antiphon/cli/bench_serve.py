"""`antiphon bench serve`: load on a server that runs, as a caller sees it."""

from __future__ import annotations

import argparse
import importlib.util
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon import env
from antiphon.cli.arguments import positive_number, whole_number
from antiphon.cli.bench_values import goal, json_object, measures, number, percentiles, rate, share
from antiphon.errors import InvalidRequestError, SettingError

if TYPE_CHECKING:
    from antiphon.bench.serve_call import Call
    from antiphon.bench.serve_load import Load, Run
    from antiphon.bench.serve_prompts import Prompt

EXAMPLES = """examples:
  antiphon bench serve --max-concurrency 8            eight callers, each asks again at once
  antiphon bench serve --request-rate 2 --modalities text,audio
  antiphon bench serve --endpoint speech --max-concurrency 4 --save-result --result-filename a.json
  antiphon bench serve --base-url http://host:8000 --model NAME    any server with OpenAI's API
  antiphon bench serve --max-concurrency 64 --duration-s 60 --disconnect-rate 0.3    under stress
"""
NUM_PROMPTS = 100
_MEASURES = "ttft,tpot,itl,e2el,ttfa,rtf,underrun"


def add_options(parser: argparse.ArgumentParser) -> None:
    """All but those that every benchmark has."""
    _add_server(parser)
    _add_question(parser)
    _add_load(parser)
    _add_results(parser)


def _add_server(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument(
        "--base-url", "--url", metavar="URL", help="address of the server, over --host and --port"
    )
    group.add_argument("--host", default="127.0.0.1", help="where the server listens")
    group.add_argument("--port", type=whole_number, default=8000, metavar="N", help="its port")
    group.add_argument("--model", metavar="NAME", help="model to name (default: the server's)")
    group.add_argument(
        "--api-key", metavar="KEY", help=f"the server's key (default: {env.API_KEY})"
    )
    group.add_argument(
        "--timeout-s", type=positive_number, default=600.0, metavar="S", help="longest one call"
    )


def _add_question(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is asked")
    group.add_argument(
        "--endpoint", choices=("chat", "speech", "realtime"), default="chat", help="what is called"
    )
    group.add_argument(
        "--modalities",
        default="text",
        metavar="LIST",
        help="what an answer is to be: text, or text,audio",
    )
    group.add_argument("--voice", metavar="NAME", help="who speaks (default: the server's choice)")
    group.add_argument(
        "--dataset",
        type=Path,
        metavar="FILE",
        help='questions: one on each line, or as .jsonl with "prompt" or "messages", and perhaps'
        ' "output_tokens"; asked in order, then from the start again (default: some of ours)',
    )
    group.add_argument(
        "--max-tokens", type=whole_number, metavar="N", help="longest text; not of speech"
    )
    group.add_argument(
        "--temperature", type=number, metavar="T", help="of a chat's sampling; 0 is greedy"
    )
    group.add_argument(
        "--ignore-eos", action="store_true", help="have every chat go on to --max-tokens"
    )
    group.add_argument(
        "--extra-body", type=json_object, metavar="JSON", help="object merged into every call"
    )


def _add_load(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("load")
    group.add_argument(
        "--num-prompts",
        type=whole_number,
        metavar="N",
        help="how many calls (default: 100; as many as there is time for with --duration-s)",
    )
    group.add_argument(
        "--duration-s", type=positive_number, metavar="S", help="seconds after which none is made"
    )
    group.add_argument(
        "--request-rate",
        type=rate,
        default=math.inf,
        metavar="R",
        help="calls per second, at random times; inf makes each as soon as --max-concurrency lets",
    )
    group.add_argument(
        "--burstiness",
        type=rate,
        default=1.0,
        metavar="B",
        help="of --request-rate: 1 is a Poisson process, less is more bursty, more is more even",
    )
    group.add_argument(
        "--max-concurrency", type=whole_number, metavar="N", help="most calls at a time"
    )
    group.add_argument(
        "--disconnect-rate",
        type=share,
        default=0.0,
        metavar="P",
        help="share of the callers, 0 to 1, that go away before the end",
    )
    group.add_argument(
        "--disconnect-within-s",
        type=positive_number,
        default=2.0,
        metavar="S",
        help="they go at a random time, at most so late",
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of all that is random")


def _add_results(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("results")
    group.add_argument(
        "--percentile-metrics",
        type=measures,
        default=_MEASURES,
        metavar="LIST",
        help=f"which to report, of {_MEASURES},client_queue_time",
    )
    group.add_argument(
        "--metric-percentiles",
        type=percentiles,
        default="90,99",
        metavar="P,P,…",
        help="which percentiles of them",
    )
    group.add_argument(
        "--goodput",
        type=goal,
        nargs="+",
        metavar="NAME:LIMIT",
        help="count the answers per second that keep all limits, in ms, as in ttft:500 ttfa:900",
    )
    group.add_argument("--save-result", action="store_true", help="write a JSON file as well")
    group.add_argument(
        "--save-detailed", action="store_true", help="with the times and the text of every answer"
    )
    group.add_argument(
        "--result-filename",
        type=Path,
        metavar="FILE",
        help="which file (default: a name made of endpoint, load, model and time)",
    )


def run(options: argparse.Namespace) -> int:
    """1 if a call failed."""
    _check(options)
    call, load = _call(options), _load(options)

    from antiphon.bench.serve_measures import summarize
    from antiphon.bench.serve_prompts import built_in, read_prompts
    from antiphon.bench.serve_report import report, result, save
    from antiphon.cli import signals

    prompts = built_in() if options.dataset is None else read_prompts(options.dataset)
    done = signals.run(lambda: _measure(call, prompts, load))
    summary = summarize(
        done, options.percentile_metrics, options.metric_percentiles, dict(options.goodput or ())
    )
    print(report(summary, load))
    if options.save_result:
        path = options.result_filename or _file_name(call, load)
        save(path, result(summary, done, load, call, detailed=options.save_detailed))
        print(f"saved {path}")
    return 1 if summary.failed else 0


async def _measure(call: Call, prompts: tuple[Prompt, ...], load: Load) -> Run:
    from antiphon.bench.serve_client import Client
    from antiphon.bench.serve_load import run_load
    from antiphon.cli.bench_progress import LoadProgress

    async with Client(call) as client:
        with LoadProgress(load.num_prompts) as progress:
            return await run_load(client.ask, prompts, load, progress.watch)


def check_client() -> None:
    """Raise SettingError if the library of the callers is not installed."""
    if importlib.util.find_spec("aiohttp") is None:
        raise SettingError("aiohttp is not installed; pip install 'antiphon[bench]'")


def _check(options: argparse.Namespace) -> None:
    """Raise what can be known before the first call."""
    from antiphon.orchestrator.files import check_output_path

    check_client()
    endless = math.isinf(options.request_rate) and options.max_concurrency is None
    if options.duration_s is not None and options.num_prompts is None and endless:
        raise InvalidRequestError(
            "--duration-s without a limit makes calls without end; give --max-concurrency,"
            " --request-rate or --num-prompts"
        )
    if options.result_filename is not None:
        options.save_result = True
        check_output_path(options.result_filename)


def _call(options: argparse.Namespace) -> Call:
    """What the calls are; asks the server for its model if none is named."""
    from antiphon.bench.serve_call import Call, Endpoint
    from antiphon.cli.served import served_model
    from antiphon.pipeline.suggest import did_you_mean

    url = options.base_url or f"http://{_bracketed(options.host)}:{options.port}"
    url = url.rstrip("/").removesuffix("/v1")
    key = options.api_key or env.api_key()
    modalities = tuple(part.strip() for part in options.modalities.split(",") if part.strip())
    for one in modalities:
        if one not in ("text", "audio"):
            hint = did_you_mean(one, ("text", "audio"))
            raise InvalidRequestError(f"--modalities: {one!r} cannot be measured{hint}")
    model, text_stage = options.model, None
    if model is None or options.ignore_eos:
        served = served_model(url, model, key)
        model, text_stage = served.id, served.text_stage
    return Call(
        url=url,
        model=model,
        text_stage=text_stage,
        endpoint=Endpoint(options.endpoint),
        modalities=modalities,
        voice=options.voice,
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        ignore_eos=options.ignore_eos,
        extra_body=options.extra_body or {},
        api_key=key,
        timeout_s=options.timeout_s,
    )


def _load(options: argparse.Namespace) -> Load:
    from antiphon.bench.serve_load import Load

    num_prompts = options.num_prompts
    if num_prompts is None and options.duration_s is None:
        num_prompts = NUM_PROMPTS
    return Load(
        num_prompts=num_prompts,
        duration_s=options.duration_s,
        request_rate=options.request_rate,
        burstiness=options.burstiness,
        max_concurrency=options.max_concurrency,
        disconnect_rate=options.disconnect_rate,
        disconnect_within_s=options.disconnect_within_s,
        seed=options.seed,
    )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _file_name(call: Call, load: Load) -> Path:
    """As vLLM makes it."""
    limit = "" if load.max_concurrency is None else f"-concurrency{load.max_concurrency}"
    model = call.model.rstrip("/").rpartition("/")[2]
    when = time.strftime("%Y%m%d-%H%M%S")
    return Path(f"openai-{call.endpoint}-{load.request_rate}qps{limit}-{model}-{when}.json")
