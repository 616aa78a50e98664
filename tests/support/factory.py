"""Real vLLM schedulers, requests and runner outputs on the CPU, without an engine.

`make_scheduler` builds one `Scheduler` object of any class from a two-layer Llama configuration
that is written to a temporary folder; `make_request` and `make_output` play the engine's and the
worker's part. Nothing here is a fake: the objects are upstream's own, only the model that would
run on them is missing.
"""

from __future__ import annotations

import atexit
import copy
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

# No look-up of a remote configuration, whatever the caller's machine allows.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

import checked
from antiphon.core.options import StageOptions
from antiphon.sched.mixin import StageSchedulerMixin
from antiphon.upstream.kv_connector import connector_config

S = TypeVar("S", bound=Scheduler)
Policy = Literal["fcfs", "priority"]
TokenFn = Callable[[str], int | list[int]]

VOCAB = 1000
MAX_MODEL_LEN = 1024
BLOCK_SIZE = 16

_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": VOCAB,
    "max_position_embeddings": 2048,
    "dtype": "float32",
}


@functools.cache
def model_folder() -> str:
    """A folder with the tiny model's configuration; removed when the process ends."""
    folder = tempfile.mkdtemp(prefix="antiphon-test-model-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    Path(folder, "config.json").write_text(json.dumps(_MODEL))
    return folder


@functools.cache
def _model_config(max_model_len: int) -> ModelConfig:
    return ModelConfig(
        model=model_folder(),
        skip_tokenizer_init=True,
        max_model_len=max_model_len,
        dtype="float32",
    )


@functools.cache
def _hash_fn() -> Callable[[Any], bytes]:
    fn = get_hash_fn_by_name("sha256")
    init_none_hash(fn)
    return fn


@functools.cache
def make_config(
    *,
    async_scheduling: bool = False,
    num_blocks: int = 200,
    block_size: int = BLOCK_SIZE,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 512,
    max_model_len: int = MAX_MODEL_LEN,
    enable_prefix_caching: bool = True,
    policy: Policy = "fcfs",
    chunked_prefill: bool = True,
    loads_caches: bool = False,
) -> VllmConfig:
    """One `VllmConfig`, shared by all schedulers with the same values (schedulers only read it).

    `loads_caches`: with the connector that takes caches of other stages in.
    """
    cache = CacheConfig(block_size=block_size, enable_prefix_caching=enable_prefix_caching)
    cache.num_gpu_blocks = num_blocks
    config = VllmConfig(
        model_config=_model_config(max_model_len),
        scheduler_config=SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            is_encoder_decoder=False,
            enable_chunked_prefill=chunked_prefill,
            policy=policy,
        ),
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
        parallel_config=ParallelConfig(),
        kv_transfer_config=connector_config() if loads_caches else None,
    )
    # The CPU platform switches prefix caching and async scheduling to its own liking while the
    # configuration is made; the scheduler itself works with either.
    config.cache_config.enable_prefix_caching = enable_prefix_caching
    config.scheduler_config.async_scheduling = async_scheduling
    return config


def make_scheduler(
    cls: type[S],
    *,
    async_scheduling: bool = False,
    num_blocks: int = 200,
    block_size: int = BLOCK_SIZE,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 512,
    max_model_len: int = MAX_MODEL_LEN,
    enable_prefix_caching: bool = True,
    policy: Policy = "fcfs",
    chunked_prefill: bool = True,
    options: StageOptions | None = None,
    loads_caches: bool = False,
    window: int = 0,
    **kw: Any,
) -> S:
    """A scheduler of class `cls`; `kw` goes to its constructor (default `log_stats=True`).

    `options` make it the scheduler of a pipeline's stage. With `window` tokens half of the model's
    layers have sliding-window attention: a second KV group.

    Block 0 is upstream's null block, so `num_blocks - 1` blocks can be given to requests.
    Pass an `AsyncScheduler` subclass together with `async_scheduling=True`: neither follows from
    the other.
    """
    config = make_config(
        async_scheduling=async_scheduling,
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        enable_prefix_caching=enable_prefix_caching,
        policy=policy,
        chunked_prefill=chunked_prefill,
        loads_caches=loads_caches,
    )
    if options is not None:
        config = copy.copy(config)
        config.additional_config = options.to_config()
    shape: dict[str, Any] = {"num_kv_heads": 4, "head_size": 16, "dtype": torch.float32}
    specs: list[KVCacheSpec] = [FullAttentionSpec(block_size=block_size, **shape)]
    if window:
        specs.append(SlidingWindowSpec(block_size=block_size, sliding_window=window, **shape))
    kv_cache = KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(specs)],
    )
    kw.setdefault("log_stats", True)
    kw.setdefault("structured_output_manager", StructuredOutputManager(config))
    made = cls(vllm_config=config, kv_cache_config=kv_cache, block_size=block_size, **kw)
    if isinstance(made, StageSchedulerMixin):
        checked.checked(made)
    return made


@functools.cache
def _block_hasher(block_size: int) -> Callable[[Request], list[Any]]:
    return get_request_block_hasher(block_size, _hash_fn())


def make_request(
    uid: str,
    n: int = 10,
    max_tokens: int = 5,
    *,
    tokens: Iterable[int] | None = None,
    stop_token_ids: Iterable[int] = (),
    priority: int = 0,
    arrival_time: float = 0.0,
    pooling: bool = False,
    block_size: int = BLOCK_SIZE,
    extra_args: Mapping[str, Any] | None = None,
    **kw: Any,
) -> Request:
    """A request with the prompt 1..n, or exactly `tokens`.

    `pooling` makes it a generation stage's request. All arrive at the same time unless told
    otherwise, so equal priorities are served in the order of their ids.
    """
    prompt = list(tokens) if tokens is not None else [1 + i % (VOCAB - 1) for i in range(n)]
    args = dict(extra_args) if extra_args is not None else None
    sampling = None
    pool = None
    if pooling:
        pool = PoolingParams(task="embed", extra_kwargs=args)
    else:
        sampling = SamplingParams(
            max_tokens=max_tokens, stop_token_ids=list(stop_token_ids), extra_args=args
        )
        # What the engine's input processor would do: without it the stop set stays empty.
        sampling.update_from_generation_config({}, None)
    return Request(
        request_id=uid,
        prompt_token_ids=prompt,
        sampling_params=sampling,
        pooling_params=pool,
        priority=priority,
        arrival_time=arrival_time,
        block_hasher=_block_hasher(block_size),
        **kw,
    )


def make_output(
    scheduler_output: SchedulerOutput,
    token_fn: TokenFn | int = 7,
    *,
    scheduler: Scheduler | None = None,
    silent: Iterable[str] = (),
    pooler_fn: Callable[[str], torch.Tensor | None] | None = None,
    cls: type[ModelRunnerOutput] = ModelRunnerOutput,
    **kw: Any,
) -> ModelRunnerOutput:
    """What a runner would return for `scheduler_output`.

    `token_fn(uid)` gives a request's sampled token or tokens. With `scheduler`, requests whose
    prompt is not yet computed sample nothing, as in a real runner: call it *before* the next
    `schedule()`. Without, name them in `silent`. With `pooler_fn` the batch is a generation
    stage's: nobody samples, and requests that are not silent get its tensor.
    `kw` sets further fields.
    """
    uids = list(scheduler_output.num_scheduled_tokens)
    quiet = set(silent)
    if scheduler is not None:
        quiet |= {u for u in uids if is_prefilling(scheduler, u)}
    if pooler_fn is not None:
        kw["pooler_output"] = [None if uid in quiet else pooler_fn(uid) for uid in uids]
        quiet = set(uids)
    sample = token_fn if callable(token_fn) else (lambda _uid: token_fn)
    sampled: list[list[int]] = []
    for uid in uids:
        got = [] if uid in quiet else sample(uid)
        sampled.append(got if isinstance(got, list) else [got])
    return cls(
        req_ids=uids,
        req_id_to_index={uid: i for i, uid in enumerate(uids)},
        sampled_token_ids=sampled,
        **kw,
    )


def is_prefilling(scheduler: Scheduler, uid: str) -> bool:
    """Whether the step just scheduled ends before the request's known tokens do."""
    request = scheduler.requests.get(uid)
    if request is None:
        return False
    # `num_computed_tokens` is advanced when a step is scheduled; in async scheduling one
    # placeholder stands for the token that this very step samples.
    placeholders = request.num_output_placeholders
    return request.num_computed_tokens < request.num_tokens + max(placeholders - 1, 0)


def step(
    scheduler: Scheduler, token_fn: TokenFn | int = 7, **kw: Any
) -> tuple[SchedulerOutput, dict[int, Any]]:
    """One synchronous engine step: schedule, pretend to run, update."""
    scheduled = scheduler.schedule()
    out = make_output(scheduled, token_fn, scheduler=scheduler, **kw)
    return scheduled, dict(scheduler.update_from_output(scheduled, out))
