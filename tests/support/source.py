"""Reads the project's own source for the tests that hold it to its rules."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import antiphon

PACKAGE = Path(antiphon.__file__).parent
TESTS = Path(__file__).parent.parent
ROOT = TESTS.parent


def trees(folder: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Every Python file under `folder`, parsed."""
    for path in sorted(folder.rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"), str(path))


def modules() -> Iterator[ModuleType]:
    """Every module of the package, imported."""
    yield antiphon
    for info in pkgutil.walk_packages(antiphon.__path__, "antiphon."):
        if not info.name.endswith("__main__"):
            yield importlib.import_module(info.name)


def classes() -> Iterator[type]:
    """Every class that the package defines."""
    for module in modules():
        for value in vars(module).values():
            if inspect.isclass(value) and value.__module__ == module.__name__:
                yield value


def upstream_bases(cls: type) -> list[type]:
    """The classes of vLLM's engine that `cls` extends, nearest first."""
    return [base for base in cls.__mro__ if base.__module__.startswith("vllm.v1.")]


def own_bases(cls: type) -> list[type]:
    """`cls` and its bases that the package defines."""
    return [base for base in cls.__mro__ if base.__module__.split(".")[0] == "antiphon"]
