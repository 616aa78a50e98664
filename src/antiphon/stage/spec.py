"""Everything a stage needs to know to start, resolved from topology and deployment.

Crosses the process boundary.
"""

from __future__ import annotations

from typing import Any

import msgspec

from antiphon.core.options import ConnectorSpec, InEdge, OutEdge, Preemption
from antiphon.pipeline.topology import StageKind

__all__ = ["ConnectorSpec", "InEdge", "OutEdge", "StageSpec"]


class StageSpec(msgspec.Struct, frozen=True):
    """One stage, ready to be started."""

    name: str
    kind: StageKind
    model: str  # path of the checkpoint folder
    engine_args: dict[str, Any]  # keyword arguments of vLLM's EngineArgs
    connector: ConnectorSpec
    inputs: tuple[InEdge, ...] = ()
    outputs: tuple[OutEdge, ...] = ()
    input_wait_timeout_s: float = 600.0  # 0: wait for ever
    atomic_inputs: bool = False  # generation: an input over the token budget is an error
    preemption: Preemption = Preemption.RECOMPUTE  # ar
    hf_config: str | None = None  # "module:function" from the checkpoint's config to the stage's
    prompt_adapter: str | None = None  # "module:Class" that makes prompts of token ids from outside
    active_streams: int = 0  # generation: streams that are served at a time; 0: as many as fit
    metrics: bool = False  # vLLM's own metrics are kept, for `Measure`
    check_every_step: bool = False  # debugging: check every store's integrity after each step
    threads: int = 1
    log_level: str = "error"  # above it, what the stage's process logs goes on to stderr
    environment: dict[str, str] = {}
    # vLLM's KV connector: for a stage that loads caches, and for all that share a process with one,
    # since vLLM keeps one connector per process and asks it in every engine's steps.
    kv_connector: bool = False
