"""AR-INV-004, in the running process: what vLLM's modules and classes hold is upstream's own.

`before = snapshot()` after the imports, then whatever the engines do, then `foreign(before) == []`.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import antiphon

_OURS = (str(Path(antiphon.__file__).parent), str(Path(__file__).parent.parent))
_OUR_PACKAGES = ("antiphon", "tests", "factory", "conftest")

# Upstream's own changes, by the end of the name: each with who makes it.
ALLOWED: dict[str, str] = {
    "_abc_impl": "Python's own cache of abstract base classes",
    "__abstractmethods__": "Python's own cache of abstract base classes",
    "__doc__": "dataclasses and pydantic fill it in when the class is first used",
    "__annotations__": "created by Python when first read",
    "__signature__": "pydantic makes it when first read",
    "__pydantic_core_schema__": "pydantic rebuilds a class whose types were not yet known",
    "__pydantic_validator__": "pydantic rebuilds a class whose types were not yet known",
    "__pydantic_serializer__": "pydantic rebuilds a class whose types were not yet known",
    "__pydantic_complete__": "pydantic rebuilds a class whose types were not yet known",
    "__pydantic_fields__": "pydantic rebuilds a class whose types were not yet known",
    "__pydantic_fields_complete__": "pydantic rebuilds a class whose types were not yet known",
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Attributes of vLLM's modules and classes: owner → name → object."""

    owners: dict[str, dict[str, Any]]


def snapshot(prefix: str = "vllm.v1") -> Snapshot:
    """What the loaded modules under `prefix` and their classes hold now; kept alive by it."""
    return Snapshot({name: dict(vars(owner)) for name, owner in _owners(prefix)})


def foreign(before: Snapshot, prefix: str = "vllm.v1") -> list[str]:
    """Attributes that are not upstream's, one line each; empty if nothing was modified.

    Reported are: anything that antiphon or a test defined; on what was there before, functions,
    classes and descriptors that were exchanged or removed. Plain data of modules and classes
    (counters, caches, registries) is upstream's to change.
    """
    found: list[str] = []
    for owner, value in _owners(prefix):
        old = before.owners.get(owner)
        new = dict(vars(value))
        for name, item in new.items():
            if name in ALLOWED:
                continue
            if _is_ours(item):
                found.append(f"{owner}.{name} is {item!r}, defined by this project")
            elif old is None or not _is_code(item):
                continue
            elif name in old and old[name] is not item and _is_code(old[name]):
                found.append(f"{owner}.{name} was exchanged for {item!r}")
        if old is not None:
            gone = [n for n, item in old.items() if n not in new and _is_code(item)]
            found += [f"{owner}.{name} was removed" for name in gone if name not in ALLOWED]
    return found


def _owners(prefix: str) -> Iterator[tuple[str, Any]]:
    for name, module in sorted(sys.modules.items()):
        if not isinstance(module, ModuleType) or not f"{name}.".startswith(f"{prefix}."):
            continue
        yield name, module
        for value in list(vars(module).values()):
            if inspect.isclass(value) and value.__module__ == name:
                yield f"{name}.{value.__qualname__}", value


def _is_code(item: Any) -> bool:
    if inspect.isroutine(item) or inspect.isclass(item):
        return True
    return isinstance(item, property | staticmethod | classmethod | functools.cached_property)


def _unwrapped(item: Any) -> Iterator[Any]:
    """The functions and classes that an attribute consists of."""
    pending, seen = [item], set()
    while pending:
        part = pending.pop()
        if part is None or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        if isinstance(part, property):
            pending += [part.fget, part.fset, part.fdel]
        elif isinstance(part, functools.partial | functools.cached_property):
            pending.append(part.func)
        elif isinstance(part, staticmethod | classmethod):
            pending.append(part.__func__)
        elif inspect.isfunction(part):
            pending.append(vars(part).get("__wrapped__"))
            # A replacement often hides behind a decorator of someone else's.
            pending += [c.cell_contents for c in part.__closure__ or () if _filled(c)]
        elif inspect.ismethod(part):
            pending += [part.__func__, part.__self__]


def _filled(cell: Any) -> bool:
    try:
        return inspect.isroutine(cell.cell_contents)
    except ValueError:  # an empty cell has no contents
        return False


def _is_ours(item: Any) -> bool:
    return any(_part_is_ours(part) for part in _unwrapped(item))


def _part_is_ours(part: Any) -> bool:
    if inspect.isfunction(part):
        return part.__code__.co_filename.startswith(_OURS)
    owner = part if inspect.isclass(part) else type(part)
    module = owner.__module__
    return isinstance(module, str) and module.split(".")[0] in _OUR_PACKAGES
