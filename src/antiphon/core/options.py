"""What a stage's scheduler and workers need to know; travels in vLLM's `additional_config`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

Scalar = bool | int | float | str

CONFIG_KEY = "antiphon"


class OutEdge(msgspec.Struct, frozen=True):
    """An edge that leaves the stage; `adapter` is "module:Class" of an OutputAdapterFactory."""

    name: str
    adapter: str
    options: dict[str, Scalar] = {}


class InEdge(msgspec.Struct, frozen=True):
    """An edge that ends at the stage; `adapter` is "module:Class" of an InputAdapter."""

    name: str
    adapter: str
    options: dict[str, Scalar] = {}


class ConnectorSpec(msgspec.Struct, frozen=True):
    """Which connector moves payloads, and the run that its names derive from."""

    kind: str  # "inproc" | "shm"
    run: str  # random token of this run
    max_bytes: int = 1 << 30


class StageOptions(msgspec.Struct, frozen=True):
    """The stage's part of the pipeline, as its scheduler and workers see it."""

    stage: str
    connector: ConnectorSpec
    inputs: tuple[InEdge, ...] = ()
    outputs: tuple[OutEdge, ...] = ()
    atomic_inputs: bool = False  # generation: an input over the token budget is an error

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
