"""`antiphon bench serve-vllm`: chat through our server, over vLLM's own server.

Two servers of one checkpoint, with the same engine settings as far as both have them, answer the
same questions, N callers at once, greedily and in text alone. Each pair is one round of both, and
only one is asked at a time; who goes first alternates. A ratio is the median over the pairs, ours
over vLLM's.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from rich.box import SIMPLE_HEAD
from rich.table import Table

from antiphon.bench.serve_answer import Answer, Ending
from antiphon.bench.serve_call import Call
from antiphon.bench.serve_client import Client
from antiphon.bench.serve_load import Load, Run, run_load
from antiphon.bench.serve_process import ServerProcess, free_port
from antiphon.bench.serve_prompts import Prompt
from antiphon.env import with_variables
from antiphon.errors import InvalidRequestError, StageError
from antiphon.pipeline.stage_deployment import StageDeployment
from antiphon.pipeline.topology import Stage, StageKind, Topology
from antiphon.pipeline.wanted import stages_wanted
from antiphon.stage.resolve import model_folder, stage_environment

MODEL = "compared"  # what both servers call it


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured."""

    concurrency: Sequence[int]
    rounds: int
    requests: int
    """Calls of a round."""
    max_tokens: int
    prompts: Sequence[Prompt]


class Row(msgspec.Struct, frozen=True):
    """One number of callers. Rates and times are medians over the rounds; ratios ours over vLLM's.

    Token rates are whole rounds': from the first call to the last answer.
    """

    concurrency: int
    ours_tokens_per_s: float
    vllm_tokens_per_s: float
    tokens_ratio: float
    ours_ttft_ms: float
    vllm_ttft_ms: float
    ttft_ratio: float
    ours_itl_ms: float
    vllm_itl_ms: float
    itl_ratio: float
    ratios: tuple[float, ...]  # of tokens per second, pair by pair
    requests: int  # of a round
    same_text: float  # share of the questions that both answered alike in every round
    prompt_tokens: tuple[int, int]  # of a round, ours and vLLM's: equal if the prompts are


class Taken(msgspec.Struct):
    """The rounds of one number of callers; those of the same index are a pair."""

    concurrency: int
    ours: list[Run] = []
    vllm: list[Run] = []


OnRound = Callable[[str], None]  # told what is measured now


def text_stage(topology: Topology) -> Stage:
    """The one that answers in text. Raises InvalidRequestError if more than one has to."""
    stages = stages_wanted(topology, entries=("chat",), modalities=("text",), inputs=("text",))
    if len(stages) != 1 or stages[0].kind is not StageKind.AR:
        names = ", ".join(stage.name for stage in stages)
        raise InvalidRequestError(
            f"pipeline {topology.name} answers in text with the stages {names}; only one whose"
            " text is of a single language model can be compared with vLLM's server"
        )
    return stages[0]


def our_server(deployment: Path, log: Path) -> ServerProcess:
    """`antiphon serve`, of text alone. `deployment`: a file with every default filled in."""
    port = free_port()
    program = [sys.executable, "-m", "antiphon.cli.main", "serve", "--port", str(port)]
    options = ["--modalities", "text", "--deployment", str(deployment), "--no-progress"]
    arguments = [*program, *options, "--served-model-name", MODEL]
    return ServerProcess("antiphon serve", arguments, with_variables({}), port, log)


def vllm_server(stage: Stage, settings: StageDeployment, log: Path) -> ServerProcess:
    """vLLM's server of the stage's checkpoint, with what its deployment says.

    Executor and scheduling are vLLM's choice; environment variables are those of our stages.
    """
    port = free_port()
    folder = model_folder(stage)
    given = {
        "dtype": settings.dtype,
        "max-model-len": settings.max_model_len,
        "max-num-seqs": settings.max_num_seqs,
        "max-num-batched-tokens": settings.max_num_batched_tokens,
        "kv-cache-memory-bytes": settings.kv_cache_bytes,
        "seed": settings.seed,
    }
    # `vllm serve` asks for the version of a distribution `vllm`, which the CPU build is not.
    arguments = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    arguments += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", MODEL]
    for name, value in given.items():
        arguments += [f"--{name}", str(value)]
    if settings.device == "cpu" or settings.engine_args.get("enforce_eager"):
        arguments.append("--enforce-eager")
    arguments += ["--no-enable-log-requests", "--disable-uvicorn-access-log"]
    environment = with_variables(stage_environment(settings, "error"))
    return ServerProcess("vLLM's server", arguments, environment, port, log)


async def measure(
    ours: str, vllm: str, plan: Plan, on_round: OnRound = lambda text: None
) -> list[Row]:
    """A row for each number of callers; `ours` and `vllm` are addresses.

    Raises StageError if a call fails.
    """
    measured = []
    async with _client(ours, plan) as a, _client(vllm, plan) as b:
        for callers in plan.concurrency:
            taken = Taken(callers)
            load = Load(num_prompts=plan.requests, max_concurrency=callers)
            sides = [("ours", a, taken.ours), ("vLLM's", b, taken.vllm)]
            for index in range(-1, plan.rounds):
                for name, client, into in sides:
                    round_ = "warm-up" if index < 0 else f"round {index + 1} of {plan.rounds}"
                    on_round(f"{callers} at once, {round_}, {name}")
                    run = await run_load(client.ask, plan.prompts, load)
                    _check(run, name)
                    if index >= 0:
                        into.append(run)
                sides.reverse()
            measured.append(taken)
    return [row_of(taken) for taken in measured]


def row_of(taken: Taken) -> Row:
    """What the rounds say."""
    ours, vllm = taken.ours, taken.vllm
    speeds = [_tokens_per_s(run) for run in ours], [_tokens_per_s(run) for run in vllm]
    waits = [_ttft_ms(run) for run in ours], [_ttft_ms(run) for run in vllm]
    steps = [_itl_ms(run) for run in ours], [_itl_ms(run) for run in vllm]
    pairs = tuple(a / b for a, b in zip(*speeds, strict=True))
    return Row(
        concurrency=taken.concurrency,
        ours_tokens_per_s=statistics.median(speeds[0]),
        vllm_tokens_per_s=statistics.median(speeds[1]),
        tokens_ratio=statistics.median(pairs),
        ours_ttft_ms=statistics.median(waits[0]),
        vllm_ttft_ms=statistics.median(waits[1]),
        ttft_ratio=_ratio(waits),
        ours_itl_ms=statistics.median(steps[0]),
        vllm_itl_ms=statistics.median(steps[1]),
        itl_ratio=_ratio(steps),
        ratios=pairs,
        requests=len(ours[0].answers),
        same_text=_same_text([run.answers for run in (*ours, *vllm)]),
        prompt_tokens=(_prompt_tokens(ours[0]), _prompt_tokens(vllm[0])),
    )


def table(rows: Sequence[Row]) -> Table:
    """The rows, and below them whether they may be compared."""
    made = Table(title="chat through our server, over vLLM's own", box=SIMPLE_HEAD, padding=0)
    for column in _COLUMNS:
        made.add_column(column, justify="right")
    for row in rows:
        made.add_row(
            str(row.concurrency),
            *(f"{value:.1f}" for value in (row.ours_tokens_per_s, row.vllm_tokens_per_s)),
            f"{row.tokens_ratio:.3f}",
            *(f"{value:.1f}" for value in (row.ours_ttft_ms, row.vllm_ttft_ms)),
            f"{row.ttft_ratio:.2f}",
            *(f"{value:.2f}" for value in (row.ours_itl_ms, row.vllm_itl_ms)),
            f"{row.itl_ratio:.3f}",
            f"{row.same_text:.0%}",
        )
    prompts = all(row.prompt_tokens[0] == row.prompt_tokens[1] for row in rows)
    made.caption = "ratios: medians over the pairs of rounds; " + (
        "prompts are the same" if prompts else "PROMPTS DIFFER: this is no comparison"
    )
    return made


_COLUMNS = (
    "callers",
    "tok/s\nours",
    "tok/s\nvLLM",
    "ratio",
    "TTFT ms\nours",
    "TTFT ms\nvLLM",
    "ratio",
    "ITL ms\nours",
    "ITL ms\nvLLM",
    "ratio",
    "same\ntext",
)


# --- parts ----------------------------------------------------------------------------------------


def _client(url: str, plan: Plan) -> Client:
    return Client(Call(url=url, model=MODEL, max_tokens=plan.max_tokens, temperature=0.0))


def _check(run: Run, whose: str) -> None:
    for answer in run.answers:
        if answer.ending is not Ending.COMPLETED:
            raise StageError(f"a call to {whose} server failed: {answer.error}")


def _ratio(of: tuple[list[float], list[float]]) -> float:
    """Median over the pairs; not a number if it all came at once."""
    pairs = [(a, b) for a, b in zip(*of, strict=True) if b > 0]
    return statistics.median(a / b for a, b in pairs) if pairs else math.nan


def _tokens_per_s(run: Run) -> float:
    return sum(answer.output_tokens for answer in run.answers) / run.duration_s


def _ttft_ms(run: Run) -> float:
    return 1000 * statistics.median(a.ttft_s for a in run.answers if a.ttft_s is not None)


def _itl_ms(run: Run) -> float:
    """Mean time per token after the first."""
    return 1000 * statistics.fmean(a.tpot_s for a in run.answers if a.tpot_s is not None)


def _prompt_tokens(run: Run) -> int:
    return sum(answer.prompt_tokens for answer in run.answers)


def _same_text(rounds: Sequence[Sequence[Answer]]) -> float:
    questions = list(zip(*rounds, strict=True))
    return statistics.fmean(len({answer.text for answer in told}) == 1 for told in questions)
