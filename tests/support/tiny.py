"""Tiny Llama checkpoints with weights that matter, and real stages on them.

Weights are of O(0.3), so that hidden states depend strongly on every token: with upstream's dummy
weights (1e-3) a conditioning is invisible and a comparison proves nothing.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import checked
from antiphon.core.options import ConnectorSpec, InEdge, OutEdge
from antiphon.pipeline.topology import StageKind
from antiphon.sched.mixin import StageSchedulerMixin
from antiphon.stage.host import StageHost
from antiphon.stage.messages import (
    Abort,
    Aborted,
    Acknowledged,
    Command,
    Discard,
    Event,
    Inspect,
    Inspection,
    Output,
    Step,
    Submit,
)
from antiphon.stage.report import Frames
from antiphon.stage.resolve import SCHEDULERS, WORKERS
from antiphon.stage.spec import StageSpec

VOCAB = 128
HIDDEN = 64
EOS = VOCAB - 1
BLOCK = 32  # tokens per KV block; the CPU's attention wants a multiple of 32
BLOCK_BYTES = 2 * 2 * 2 * 32 * 4 * BLOCK  # K and V, layers, KV heads, head size, fp32
MAX_LEN = 256


def tiny_config(**over: Any) -> LlamaConfig:
    return LlamaConfig(
        **{
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": VOCAB,
            "hidden_size": HIDDEN,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 512,
            "bos_token_id": 0,
            "eos_token_id": EOS,
            "tie_word_embeddings": False,
            "dtype": "float32",
            **over,
        }
    )


def tiny_model(folder: Path, *, seed: int = 1, **over: Any) -> str:
    """Write a checkpoint into `folder` and return its path."""
    config = tiny_config(**over)
    model = LlamaForCausalLM(config).to(torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(1.0 + 0.1 * noise)
            elif "embed" in name:
                parameter.copy_(noise)
            else:
                parameter.copy_(0.3 * noise)
    model.save_pretrained(folder, safe_serialization=True)
    if architectures := over.get("architectures"):  # save_pretrained writes its own class's name
        config.architectures = architectures
        config.save_pretrained(folder)
    return str(folder)


def reference(folder: str) -> LlamaForCausalLM:
    """The same weights in transformers."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def reference_rows(model: LlamaForCausalLM, token_ids: Iterable[int]) -> torch.Tensor:
    """Last hidden states of transformers' model, [num_tokens, hidden]."""
    with torch.inference_mode():
        return model.model(torch.tensor([list(token_ids)])).last_hidden_state[0]


def engine_args(**over: Any) -> dict[str, Any]:
    """EngineArgs of every tiny engine, ours or stock."""
    args = {
        "dtype": "float32",
        "max_model_len": MAX_LEN,
        "max_num_seqs": 8,
        "max_num_batched_tokens": MAX_LEN,
        "kv_cache_memory_bytes": 64 * BLOCK_BYTES,
        "block_size": BLOCK,
        "enable_prefix_caching": False,
        "skip_tokenizer_init": True,
        "disable_log_stats": True,
        "enforce_eager": True,
        "async_scheduling": False,
        "distributed_executor_backend": "vllm.v1.executor.uniproc_executor.UniProcExecutor",
        "seed": 0,
    }
    return args | over


def tiny_spec(
    name: str,
    model: str,
    run: str,
    *,
    kind: StageKind = StageKind.AR,
    inputs: tuple[InEdge, ...] = (),
    outputs: tuple[OutEdge, ...] = (),
    input_wait_timeout_s: float = 0.0,
    **over: Any,
) -> StageSpec:
    """A stage on CPU with the in-process connector; `over` are EngineArgs."""
    overlap = bool(over.get("async_scheduling", False))
    args = engine_args(
        scheduler_cls=SCHEDULERS[kind, overlap], worker_cls=WORKERS["cpu", kind], **over
    )
    return StageSpec(
        name=name,
        kind=kind,
        model=model,
        engine_args=args,
        connector=ConnectorSpec("inproc", run),
        inputs=inputs,
        outputs=outputs,
        input_wait_timeout_s=input_wait_timeout_s,
        check_every_step=True,
    )


@dataclass
class Driven:
    """A stage that a test steps by hand; everything that it reported is kept."""

    spec: StageSpec
    events: list[Event] = field(default_factory=list)
    frames: list[Frames] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.host = StageHost(self.spec, self._sent)
        host = weakref.ref(self.host)
        checked.shared(self.host, lambda: (found := host()) is not None and not found.stopped)
        self._numbers = 0
        self._prefills: dict[str, Any] = {}  # upstream's record of each request's prompt

    def _sent(self, event: Event, frames: Frames) -> None:
        self.events.append(event)
        self.frames.append(frames)

    @property
    def scheduler(self) -> StageSchedulerMixin:
        """The stage's scheduler, to look at what no message tells."""
        return self.host.scheduler

    def clear(self) -> None:
        self.events.clear()
        self.frames.clear()

    def submit(self, uid: str, token_ids: Iterable[int] = (), **given: Any) -> None:
        """Submit with greedy sampling that ignores the end token; `given` are Submit's fields."""
        sampling = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True}
        sampling |= given.pop("sampling", {})
        self.host.handle(Submit(uid, list(token_ids), sampling, **given))
        if (request := self.scheduler.requests.get(uid)) is not None:
            self._prefills[uid] = request.prefill_stats

    def run(self, limit: int = 2000) -> None:
        """Step until there is nothing to do."""
        for _ in range(limit):
            if not self.host.has_work:
                return
            self.host.step()
        raise AssertionError(f"the stage still works after {limit} steps")

    def run_until(self, condition: Callable[[], bool], limit: int = 2000) -> None:
        """Step until `condition`."""
        for _ in range(limit):
            if condition():
                return
            self.host.step()
        raise AssertionError(f"the condition does not hold after {limit} steps")

    def outputs(self, uid: str) -> list[Output]:
        return [o for e in self.events if isinstance(e, Step) for o in e.outputs if o.uid == uid]

    def refs(self) -> list[Any]:
        return [ref for e in self.events if isinstance(e, Step) for ref in e.refs]

    def discard(self) -> None:
        """Nobody takes the payloads that were announced since the last `clear`."""
        keys = [ref.key for ref in self.refs() if ref.key is not None]
        self.host.handle(Discard(keys))
        self.run()

    def tokens(self, uid: str) -> list[int]:
        return [token for output in self.outputs(uid) for token in output.token_ids]

    def endings(self, uid: str) -> list[Output]:
        return [output for output in self.outputs(uid) if output.finish is not None]

    def abort(self, *uids: str) -> Aborted:
        """Abort and step until it is acknowledged."""
        self._numbers += 1
        token = self._numbers
        self.host.handle(Abort(list(uids), token))
        self.run_until(
            lambda: any(isinstance(e, Aborted) and e.token == token for e in self.events)
        )
        return next(e for e in self.events if isinstance(e, Aborted) and e.token == token)

    def cached_tokens(self, uid: str) -> int:
        """How much of the request's prompt was found in the prefix cache."""
        return int(self._prefills[uid].num_local_cached_tokens)

    def external_tokens(self, uid: str) -> int:
        """How much of the request's prompt came from another stage's cache."""
        return int(self._prefills[uid].num_external_cached_tokens)

    def ask(self, command: Command) -> Acknowledged | Inspection:
        """A command that is answered at once, and its answer."""
        before = len(self.events)
        self.host.handle(command)
        found = [e for e in self.events[before:] if isinstance(e, Acknowledged | Inspection)]
        assert len(found) == 1
        return found[0]

    def ask_first(self, command: Command) -> Event:
        """The first event that a command brings."""
        before = len(self.events)
        self.host.handle(command)
        return self.events[before]

    def inspect(self) -> Inspection:
        answer = self.ask(Inspect(0))
        assert isinstance(answer, Inspection)
        return answer

    def assert_empty(self) -> None:
        """Nothing is alive: every block free, every table empty, the stores agree (I1, I2)."""
        self.run()
        seen = self.inspect()
        assert seen.error is None
        assert (seen.requests, seen.gated, seen.worker_requests) == (0, 0, 0)
        assert seen.free_blocks == seen.total_blocks - 1  # one is upstream's null block
