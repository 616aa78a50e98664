"""`antiphon bench worker`: what it costs a step to make outputs for another stage.

Three engines of one tiny model, in this process, hold the same decoding requests: those of one feed
no edge, those of the others an edge that sends a chunk per request and step, of the sampled ids or
of the hidden rows. Each turn is one step of every engine, and who goes first rotates; the chunks
are thrown away outside the timing. A model this small makes the share large: with a larger one the
added microseconds stay what they are, but for its wider rows.
"""

from __future__ import annotations

import json
import logging
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import torch
from rich.console import Console
from rich.table import Table

from antiphon.bench.frame import heading, write
from antiphon.bench.timing import undisturbed
from antiphon.connector.runs import new_run_token
from antiphon.core.options import ConnectorSpec, OutEdge
from antiphon.payload.adapters import OutputNeeds, StageContext, StepRows
from antiphon.payload.types import Payload, Scalar, per_token
from antiphon.pipeline.defaults import detect_device
from antiphon.pipeline.stage_deployment import Device, StageDeployment
from antiphon.pipeline.topology import Stage, StageKind
from antiphon.stage.host import StageHost
from antiphon.stage.messages import Discard, Event, Step, Submit
from antiphon.stage.report import Frames
from antiphon.stage.resolve import engine_args
from antiphon.stage.spec import StageSpec

REQUESTS = 8
TURNS = 1000  # measured; one token of each request
WARM_UP = 20
NOTHING, TOKENS, ROWS = "no edge", "tokens", "hidden rows"

_PROMPT = 32
_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "dtype": "float32",
}


class Row(msgspec.Struct, frozen=True):
    """What the requests feed; times are medians in microseconds per step."""

    feeds: str
    ratio: float  # over requests that feed no edge
    step_us: float
    added_us: float
    chunks: float  # sent per step
    requests: int
    turns: int


class TokenChunks:
    """A chunk of each step's sampled ids, int32 [1]."""

    needs = OutputNeeds(requires_token_updates=True)

    def __init__(self, context: StageContext) -> None:
        pass

    def open(self, uid: str, params: Mapping[str, Scalar]) -> TokenChunks:
        return self  # nothing is kept for a request

    def on_tokens(self, token_ids: Sequence[int]) -> list[Payload]:
        return [Payload({"ids": per_token(torch.tensor(token_ids, dtype=torch.int32))})]

    def on_rows(self, rows: StepRows) -> list[Payload]:
        return [] if rows.hidden is None else [Payload({"rows": per_token(rows.hidden)})]

    def on_end(self) -> list[Payload]:
        return []


class RowChunks(TokenChunks):
    """A chunk of each step's last hidden states, [1, hidden]."""

    needs = OutputNeeds(include_hidden=True)


EDGES = {
    NOTHING: (),
    TOKENS: (OutEdge(TOKENS, f"{__name__}:TokenChunks", stream=True),),
    ROWS: (OutEdge(ROWS, f"{__name__}:RowChunks", stream=True),),
}


def main(json_path: Path | None) -> int:
    """Measure, print a table, write the results if a path is given. The exit code: always 0."""
    for name in ("vllm", "torch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    with Console(stderr=True).status("measuring"):
        rows = measure(REQUESTS, TURNS)
    console = Console()
    console.print(_table(rows))
    console.print(heading(), style="dim")
    if json_path is not None:
        write(json_path, rows)
    return 0


def measure(requests: int, turns: int) -> list[Row]:
    """A row for each of `EDGES`, on `requests` decoding requests."""
    engines: list[_Engine] = []
    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as folder:
        Path(folder, "config.json").write_text(json.dumps(_MODEL), encoding="utf-8")
        try:
            for feeds in EDGES:
                engines.append(_Engine(folder, feeds, requests, turns))
            times = _timed_turns(engines, turns)
        finally:
            for engine in engines:
                engine.host.stop()
    return [
        row(engine.feeds, requests, engine.sent, times[0], taken)
        for engine, taken in zip(engines, times, strict=True)
    ]


def row(feeds: str, requests: int, sent: int, base: Sequence[float], taken: Sequence[float]) -> Row:
    """`base` and `taken` are seconds per step, those of one index from the same turn; `sent` is the
    number of chunks over all turns.
    """
    turns = list(zip(base, taken, strict=True))
    return Row(
        feeds=feeds,
        ratio=round(statistics.median(b / a for a, b in turns), 4),
        step_us=round(statistics.median(taken) * 1e6, 1),
        added_us=round(statistics.median(b - a for a, b in turns) * 1e6, 1),
        chunks=sent / len(turns),
        requests=requests,
        turns=len(turns),
    )


class _Engine:
    """A stage that decodes; its chunks have no consumer."""

    def __init__(self, model: str, feeds: str, requests: int, turns: int) -> None:
        self.feeds = feeds
        self.sent = 0  # chunks
        self._keys: list[str] = []
        device = detect_device()
        # On a GPU a step waits; on the CPU it only works, and other processes do not count.
        self._clock = time.thread_time if device == "cpu" else time.perf_counter
        self.host = StageHost(_spec(model, feeds, requests, turns, device), self._on_event)
        sampling = {"temperature": 0.0, "max_tokens": turns + WARM_UP + 2, "ignore_eos": True}
        edges = tuple(edge.name for edge in EDGES[feeds])
        for index in range(requests):
            prompt = [1 + index + i for i in range(_PROMPT)]
            self.host.handle(Submit(f"request-{index}", prompt, sampling, edges=edges))

    def step(self) -> float:
        """Seconds that a step took."""
        start = self._clock()
        self.host.step()
        taken = self._clock() - start
        self.sent += len(self._keys)
        self.host.handle(Discard(self._keys))
        self._keys = []
        return taken

    def _on_event(self, event: Event, frames: Frames) -> None:
        if isinstance(event, Step):
            self._keys += [ref.key for ref in event.refs if ref.key is not None]


def _timed_turns(engines: Sequence[_Engine], turns: int) -> list[list[float]]:
    """Seconds per step of each engine, after a warm-up that also does the prefill."""
    for engine in engines:
        for _ in range(WARM_UP):
            engine.step()
        engine.sent = 0
    times: list[list[float]] = [[] for _ in engines]
    order = list(range(len(engines)))
    with undisturbed():
        for _ in range(turns):
            for index in order:
                times[index].append(engines[index].step())
            order.append(order.pop(0))
    return times


def _table(rows: Sequence[Row]) -> Table:
    table = Table(title="a step of a tiny model, by what its requests feed")
    table.add_column("feeds")
    for column in ("requests", "step µs", "added µs", "ratio", "chunks", "turns"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row.feeds,
            str(row.requests),
            f"{row.step_us:.0f}",
            f"{row.added_us:.0f}",
            f"{row.ratio:.3f}",
            f"{row.chunks:g}",
            str(row.turns),
        )
    table.caption = "added, ratio: medians over the turns, over requests that feed no edge"
    return table


def _spec(model: str, feeds: str, requests: int, turns: int, device: Device) -> StageSpec:
    length = _PROMPT + WARM_UP + turns + 32
    stage = Stage("worker", StageKind.AR, model=f"{__name__}:main")  # not asked: `model` is there
    settings = StageDeployment(
        device=device,
        dtype="float32",
        max_model_len=length,
        max_num_seqs=requests,
        max_num_batched_tokens=max(length, requests * _PROMPT),
        kv_cache_bytes=1 << 26,
        async_scheduling=False,
        seed=0,
        # Only time matters; and what feeds an edge of rows would not read the prefix cache.
        engine_args={"load_format": "dummy", "enable_prefix_caching": False},
    )
    return StageSpec(
        name=stage.name,
        kind=stage.kind,
        model=model,
        engine_args=engine_args(stage, settings),
        connector=ConnectorSpec("inproc", new_run_token()),
        outputs=EDGES[feeds],
    )
