"""Everything a stage needs to know to start, resolved from topology and deployment. Crosses the process boundary."""

from __future__ import annotations

from typing import Any

import msgspec

from antiphon.pipeline.topology import StageKind

Scalar = bool | int | float | str


class OutEdge(msgspec.Struct, frozen=True):
    """An edge that leaves the stage."""

    name: str
    adapter: str  # "module:Class" of the OutputAdapterFactory
    options: dict[str, Scalar] = {}


class InEdge(msgspec.Struct, frozen=True):
    """An edge that ends at the stage."""

    name: str
    adapter: str  # "module:Class" of the InputAdapter
    options: dict[str, Scalar] = {}


class ConnectorSpec(msgspec.Struct, frozen=True):
    """Which connector moves payloads, and the run that its names derive from."""

    kind: str  # "inproc" | "shm"
    run: str  # random token of this run
    max_bytes: int = 1 << 30


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
    threads: int = 1
    environment: dict[str, str] = {}
