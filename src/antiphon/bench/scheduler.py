"""`antiphon bench scheduler`: host time of schedule and update, over vLLM's own scheduler.

Two schedulers, stock and the stage's, get the same N decoding requests. Each pair is one step of
both on the same state, so that a block boundary costs both alike; who goes first alternates, and
the ratio is the median over the pairs. What a worker would return is made outside the timing. Times
are those of this thread on its processor: nothing here waits, and other processes do not count.
"""

from __future__ import annotations

import json
import logging
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import torch
from rich.console import Console
from rich.table import Table
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from antiphon.bench.frame import heading, write
from antiphon.bench.timing import undisturbed
from antiphon.sched.ar import ARScheduler

S = TypeVar("S", bound=Scheduler)

PAIRS = {8: 2000, 64: 500, 256: 150}  # requests: measured pairs
WARM_UP = 20
TARGET = 1.05
EDGE = "out"

_BLOCK_SIZE = 16
_PROMPT = 32
_MAX_MODEL_LEN = 4096
_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": _MAX_MODEL_LEN,
    "torch_dtype": "float32",
}


class Row(msgspec.Struct, frozen=True):
    """One number of requests; times are medians in microseconds per step."""

    requests: int
    ratio: float
    stock_us: float
    antiphon_us: float
    pairs: int


def main(json_path: Path | None) -> int:
    """Measure, print a table, write the results if a path is given. The exit code: always 0."""
    logging.getLogger("vllm").setLevel(logging.ERROR)
    console = Console()
    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as folder:
        Path(folder, "config.json").write_text(json.dumps(_MODEL), encoding="utf-8")
        with console.status("measuring"):
            plain = [measure(folder, n, pairs) for n, pairs in PAIRS.items()]
            routed = [measure(folder, n, pairs, routed=True) for n, pairs in PAIRS.items()]
    console.print(_table(plain, routed))
    console.print(heading(), style="dim")
    if json_path is not None:
        write(json_path, plain, routed=routed)
    return 0


def measure(folder: str, requests: int, pairs: int, *, routed: bool = False) -> Row:
    """Compare the two on `requests` decoding requests; `routed`: all have an outgoing edge."""
    config = _config(folder, requests)
    num_blocks = 1 + requests * -(-(_PROMPT + pairs + WARM_UP + 2) // _BLOCK_SIZE)
    stock = _scheduler(Scheduler, config, num_blocks)
    ours = _scheduler(ARScheduler, config, num_blocks)
    for index in range(requests):
        uid = f"request-{index}"
        if routed:
            ours.coordinator.expect(
                uid,
                wait=None,
                edges=(EDGE,),
                params={},
                num_prompt_tokens=_PROMPT,
            )
        stock.add_request(_request(uid))
        ours.add_request(_request(uid))
    return _row(requests, *_timed_pairs(stock, ours, pairs))


def _timed_pairs(stock: Scheduler, ours: Scheduler, pairs: int) -> tuple[list[float], list[float]]:
    """Seconds per step of both, after a warm-up that also does the prefill."""
    for _ in range(WARM_UP):
        _step(stock)
        _step(ours)
    first: list[float] = []
    second: list[float] = []
    with undisturbed():
        for pair in range(pairs):
            if pair % 2:
                second.append(_step(ours))
                first.append(_step(stock))
            else:
                first.append(_step(stock))
                second.append(_step(ours))
    return first, second


def _step(scheduler: Scheduler) -> float:
    """Seconds that `schedule` and `update_from_output` took."""
    start = time.thread_time()
    scheduled = scheduler.schedule()
    middle = time.thread_time()
    output = _output(scheduled)
    resumed = time.thread_time()
    scheduler.update_from_output(scheduled, output)
    return time.thread_time() - resumed + middle - start


def _row(requests: int, stock: Sequence[float], ours: Sequence[float]) -> Row:
    ratio = statistics.median(b / a for a, b in zip(stock, ours, strict=True))
    return Row(
        requests=requests,
        ratio=round(ratio, 4),
        stock_us=round(statistics.median(stock) * 1e6, 1),
        antiphon_us=round(statistics.median(ours) * 1e6, 1),
        pairs=len(stock),
    )


def _table(plain: Sequence[Row], routed: Sequence[Row]) -> Table:
    table = Table(title="schedule + update, host time per step")
    table.add_column("stage features")
    for column in ("requests", "stock µs", "antiphon µs", "ratio", "pairs"):
        table.add_column(column, justify="right")
    for name, rows in (("none", plain), ("routed", routed)):
        for row in rows:
            table.add_row(
                name,
                str(row.requests),
                f"{row.stock_us:.1f}",
                f"{row.antiphon_us:.1f}",
                f"{row.ratio:.3f}",
                str(row.pairs),
            )
        table.add_section()
    table.caption = f"ratio: median over the pairs; target without stage features: {TARGET:g}"
    return table


# --- what a scheduler needs, without an engine ----------------------------------------------------


def _config(folder: str, requests: int) -> VllmConfig:
    config = VllmConfig(
        model_config=ModelConfig(
            model=folder, skip_tokenizer_init=True, max_model_len=_MAX_MODEL_LEN, dtype="float32"
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=requests,
            max_num_batched_tokens=max(_MAX_MODEL_LEN, requests * _PROMPT),
            max_model_len=_MAX_MODEL_LEN,
            is_encoder_decoder=False,
        ),
        cache_config=CacheConfig(block_size=_BLOCK_SIZE, enable_prefix_caching=False),
        device_config=DeviceConfig("cpu"),
        parallel_config=ParallelConfig(),
    )
    config.scheduler_config.async_scheduling = False
    return config


def _scheduler(cls: type[S], config: VllmConfig, num_blocks: int) -> S:
    config.cache_config.num_gpu_blocks = num_blocks
    spec = FullAttentionSpec(
        block_size=_BLOCK_SIZE, num_kv_heads=4, head_size=16, dtype=torch.float32
    )
    return cls(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer.0"], spec)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=_BLOCK_SIZE,
    )


def _request(uid: str) -> Request:
    return Request(
        request_id=uid,
        prompt_token_ids=[1 + i for i in range(_PROMPT)],
        sampling_params=SamplingParams(max_tokens=_MAX_MODEL_LEN, ignore_eos=True),
        pooling_params=None,
        arrival_time=0.0,
    )


def _output(scheduled: SchedulerOutput) -> ModelRunnerOutput:
    uids = list(scheduled.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=uids,
        req_id_to_index={uid: index for index, uid in enumerate(uids)},
        sampled_token_ids=[[7] for _ in uids],
    )
