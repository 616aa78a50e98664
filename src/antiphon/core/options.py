"""What a stage's scheduler and workers need to know; travels in vLLM's `additional_config`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon.core.budget import EdgeLimits
from antiphon.core.kv_handoff import KvSettings, KvTransfer

Scalar = bool | int | float | str

CONFIG_KEY = "antiphon"

PROMPT_EDGE = "(prompt)"
"""The edge that a stage's own prompt adapter stands at: no topology can have one of this name."""


WHOLE_WEIGHTS = "antiphon"
"""vLLM's load format by which a stage's weights are loaded: all of them, or it is an error."""


class Preemption(enum.StrEnum):
    """What becomes of a request when the stage has no cache block for its next step.

    `recompute`: the youngest gives its blocks up and is computed again later, as in vLLM.
    `fail`: it ends with PreemptedError.
    `reserve`: it cannot happen. A request begins only when all that it may ever need fits beside
    what the others may; it waits until then, and one that never fits is refused.

    The last two are for models that cannot repeat what they have computed.
    """

    RECOMPUTE = "recompute"
    FAIL = "fail"
    RESERVE = "reserve"


class OutEdge(msgspec.Struct, frozen=True):
    """An edge that leaves the stage; `adapter` is "module:Class" of an OutputAdapterFactory.

    Without `stream`, what the adapter makes is held back until the request ends. With `kv` it
    leaves together with the request's KV cache: as the blocks that its engine has (`kv_blocks`), or
    as keys and values by position.
    """

    name: str
    adapter: str
    options: dict[str, Scalar] = {}
    stream: bool = False
    limits: EdgeLimits = EdgeLimits()
    kv: KvTransfer | None = None
    kv_settings: KvSettings = KvSettings()
    kv_blocks: bool = False


class InEdge(msgspec.Struct, frozen=True):
    """An edge that ends at the stage; `adapter` is "module:Class" of an InputAdapterFactory.

    With `stream`, chunks of one request arrive while its producer runs. With `kv` they bring a
    KV cache.
    """

    name: str
    adapter: str
    options: dict[str, Scalar] = {}
    stream: bool = False
    kv: bool = False


class ConnectorSpec(msgspec.Struct, frozen=True):
    """Which connector moves payloads, and the run that its names derive from."""

    kind: str  # "inproc" | "shm" | "module:Class"
    run: str  # random token of this run
    max_bytes: int = 1 << 30


class StageOptions(msgspec.Struct, frozen=True):
    """The stage's part of the pipeline, as its scheduler and workers see it."""

    stage: str
    connector: ConnectorSpec
    inputs: tuple[InEdge, ...] = ()
    outputs: tuple[OutEdge, ...] = ()
    atomic_inputs: bool = False  # generation: an input over the token budget is an error
    preemption: Preemption = Preemption.RECOMPUTE  # ar
    active_streams: int = 0  # generation: streams that are served at a time; 0: as many as fit

    def to_config(self) -> dict[str, Any]:
        """As an entry of vLLM's `additional_config`."""
        return {CONFIG_KEY: msgspec.to_builtins(self)}

    @classmethod
    def from_config(cls, additional_config: object) -> StageOptions | None:
        """The options that `to_config` wrote; None when the engine is not a stage of a pipeline."""
        if not isinstance(additional_config, Mapping):
            return None
        raw = additional_config.get(CONFIG_KEY)
        return None if raw is None else msgspec.convert(raw, cls)
