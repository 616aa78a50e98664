"""Verifies the contract list against the vLLM and transformers that are installed."""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import importlib
import inspect
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from antiphon.errors import SeamMovedError
from antiphon.upstream.contract import SYMBOLS
from antiphon.upstream.symbols import Symbol
from antiphon.upstream.version import SUPPORTED, require_vllm

_UPSTREAM = ("vllm", "transformers")


class Status(enum.Enum):
    """Outcome for one name."""

    OK = "ok"
    MISSING = "missing"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One name of the contract and how it was found."""

    seam: str
    symbol: str
    status: Status
    detail: str


def run_check(symbols: Sequence[Symbol] = SYMBOLS) -> list[CheckRow]:
    """One row per name, in the list's order. Imports vLLM, which takes several seconds.

    Raises UpstreamMissingError or UpstreamVersionError before any name is looked at.
    """
    require_vllm()
    return [_check(symbol) for symbol in symbols]


def require_seams(rows: Sequence[CheckRow]) -> None:
    """Raise SeamMovedError, with a one-line summary, if a name is not as expected."""
    moved = [row for row in rows if row.status is not Status.OK]
    if moved:
        names = "; ".join(f"{row.symbol} ({row.detail})" for row in moved)
        raise SeamMovedError(
            f"{len(moved)} of {len(rows)} names that Antiphon uses have moved in vLLM or"
            f" transformers: {names}; install a vLLM {SUPPORTED}, and transformers as Antiphon's"
            " requirements name it"
        )


def _check(symbol: Symbol) -> CheckRow:
    def row(status: Status, detail: str) -> CheckRow:
        return CheckRow(symbol.seam, f"{symbol.module}.{symbol.qualname}", status, detail)

    try:
        module = importlib.import_module(symbol.module)
    except ImportError as error:
        return row(Status.MISSING, f"cannot import {symbol.module}: {error}")
    owner, found = _find(module, symbol)
    if not found:
        return row(Status.MISSING, f"no {symbol.kind} of this name")
    if symbol.signature is None:
        return row(Status.OK, symbol.kind)
    actual = _signature(owner, symbol)
    if actual != symbol.signature:
        return row(
            Status.CHANGED, f"({', '.join(actual)}), expected ({', '.join(symbol.signature)})"
        )
    return row(Status.OK, f"({', '.join(actual)})")


def _find(module: Any, symbol: Symbol) -> tuple[Any, bool]:
    """The owner of the name, or the callable itself, and whether it is there."""
    *path, last = symbol.qualname.split(".")
    owner: Any = module
    for part in path:
        owner = inspect.getattr_static(owner, part, None)
        if owner is None:
            return None, False
    match symbol.kind:
        case "field":
            return owner, last in field_names(owner)
        case "attribute":
            return owner, last in attribute_names(owner)
        case "hook":
            return owner, last in _strings(owner)
        case "class":
            value = inspect.getattr_static(owner, last, None)
            return value, inspect.isclass(value)
        case "method" | "function":
            value = inspect.getattr_static(owner, last, None)
            if isinstance(value, staticmethod | classmethod):
                value = value.__func__
            return value, inspect.isroutine(value)


@functools.cache
def _strings(owner: Any) -> set[str]:
    """String literals in the source of a class or module."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {value for value in constants if isinstance(value, str)}


def _signature(value: Any, symbol: Symbol) -> tuple[str, ...]:
    """Parameter names without `self`; for a class those of its constructor."""
    names = tuple(inspect.signature(value).parameters)
    return names[1:] if symbol.kind == "method" and names[:1] in (("self",), ("cls",)) else names


def field_names(cls: Any) -> tuple[str, ...]:
    """Fields of a dataclass, a msgspec struct or a named tuple, in order."""
    if dataclasses.is_dataclass(cls):
        return tuple(f.name for f in dataclasses.fields(cls))
    if issubclass(cls, msgspec.Struct):
        fields: tuple[str, ...] = cls.__struct_fields__
        return fields
    return tuple(vars(cls).get("_fields", ()))


@functools.cache
def attribute_names(owner: Any) -> set[str]:
    """Names that a class or one of its bases defines, or sets on `self`; of a module, its globals.

    Instance attributes exist only in the source: no object has to be built to look for them.
    """
    if not inspect.isclass(owner):
        return set(vars(owner))
    names: set[str] = set()
    for cls in owner.__mro__:
        if cls.__module__.split(".")[0] not in _UPSTREAM:
            continue
        names |= set(vars(cls)) | set(vars(cls).get("__annotations__", ()))
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
        names |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        }
    return names
