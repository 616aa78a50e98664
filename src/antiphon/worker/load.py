"""Resolves the "module:attribute" names that a topology declares."""

from __future__ import annotations

from typing import cast

from antiphon.core.options import InEdge, OutEdge, StageOptions
from antiphon.core.targets import load_target
from antiphon.errors import AdapterError
from antiphon.payload.adapters import InputAdapterFactory, OutputAdapterFactory, StageContext


def input_factories(options: StageOptions, model: str) -> dict[str, InputAdapterFactory]:
    """By edge. Raises AdapterError."""
    made = ((edge.name, _make(edge, options.stage, model)) for edge in options.inputs)
    return {name: cast("InputAdapterFactory", factory) for name, factory in made}


def output_factories(options: StageOptions, model: str) -> dict[str, OutputAdapterFactory]:
    """By edge. Raises AdapterError."""
    made = ((edge.name, _make(edge, options.stage, model)) for edge in options.outputs)
    return {name: cast("OutputAdapterFactory", factory) for name, factory in made}


def _make(edge: InEdge | OutEdge, stage: str, model: str) -> object:
    maker = load_target(edge.adapter, f"the adapter of edge {edge.name}", AdapterError)
    if not callable(maker):
        raise AdapterError(f"'{edge.adapter}' is not a class")
    return maker(StageContext(stage, edge.name, model, edge.options, edge.stream))
