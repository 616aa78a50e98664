"""AR-INV-004, in the source: vLLM is not modified, and what is used of its inside is listed."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator

import pytest

from antiphon.upstream.check import attribute_names
from antiphon.upstream.contract import SYMBOLS
from source import PACKAGE, TESTS, classes, own_bases, trees, upstream_bases

LISTED = {(symbol.module, symbol.qualname) for symbol in SYMBOLS}
LISTED_NAMES = {symbol.qualname.rpartition(".")[2] for symbol in SYMBOLS}
EXTENDING = [cls for cls in classes() if upstream_bases(cls)]

_SETTERS = {"setattr", "delattr", "setitem", "delitem", "patch", "object"}


# --- nothing is assigned --------------------------------------------------------------------------


def _root(node: ast.expr) -> str | None:
    """The name that an expression such as `a.b[c].d` starts with."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _from_upstream(tree: ast.Module) -> set[str]:
    """Local names of modules, classes and functions imported from vLLM."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {
                alias.asname or "vllm" for alias in node.names if alias.name.split(".")[0] == "vllm"
            }
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def _changes(tree: ast.Module) -> Iterator[ast.AST]:
    """Places that assign to, delete from or patch something imported from vLLM."""
    upstream = _from_upstream(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Subscript):
            stored = isinstance(node.ctx, ast.Store | ast.Del)
            if stored and _root(node) in upstream:
                yield node
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else _root(node.func)
            first = node.args[0]
            text = first.value if isinstance(first, ast.Constant) else None
            named = isinstance(text, str) and text.split(".")[0] == "vllm"
            if called in _SETTERS and (_root(first) in upstream or named):
                yield node


@pytest.mark.parametrize("folder", [PACKAGE, TESTS], ids=["package", "tests"])
def test_nothing_is_assigned_to_upstream(folder: object) -> None:
    found = [
        f"{path}:{node.lineno}"  # type: ignore[attr-defined]
        for path, tree in trees(folder)  # type: ignore[arg-type]
        for node in _changes(tree)
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "Scheduler.schedule = mine",
        "del Scheduler.schedule",
        "core.Engine.step_fn = mine",
        "core.registry['x'] = mine",
        "setattr(Scheduler, 'schedule', mine)",
        "monkeypatch.setattr(core, 'x', 1)",
        "monkeypatch.setattr('vllm.v1.core.x', 1)",
        "mock.patch.object(Scheduler, 'schedule')",
    ],
)
def test_the_scan_sees_every_way_to_assign(line: str) -> None:
    head = "import vllm.v1.core as core\nfrom vllm.v1.core.sched.scheduler import Scheduler\n"
    assert list(_changes(ast.parse(head + line)))


def test_the_scan_lets_instances_be_written() -> None:
    """Objects that upstream hands out are ours to write to where upstream does the same."""
    source = "from vllm.v1.request import Request\ndef f(r: Request): r.cache_salt = 'x'"
    assert not list(_changes(ast.parse(source)))


# --- what is used is listed -----------------------------------------------------------------------


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _defined_by(tree: ast.AST) -> set[str]:
    """Names that the code gives to attributes, functions and classes."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Attribute(ctx=ast.Store()) if isinstance(node.value, ast.Name):
                if node.value.id in ("self", "cls"):
                    names.add(node.attr)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
    return names


def test_private_names_of_other_objects_are_ours_or_listed() -> None:
    """C126: what may change without notice is listed, each name in one file for its seam."""
    own: set[str] = set()
    for _, tree in trees(PACKAGE):
        own |= _defined_by(tree)
    unknown = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {node.attr}"
        for path, tree in trees(PACKAGE)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and _private(node.attr)
        and node.attr not in own | LISTED_NAMES
        and not (isinstance(node.value, ast.Name) and node.value.id in _others(tree))
    ]
    assert unknown == []


def _others(tree: ast.Module) -> set[str]:
    """Local names of modules that are not vLLM's, such as `os` in `os._exit`."""
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name.split(".")[0] != "vllm"
    }


def test_every_listed_name_is_used() -> None:
    """The list does not outgrow the code."""
    used: set[str] = set()
    for path, tree in trees(PACKAGE):
        if path.name != "contract.py":
            used |= _words(tree)
    assert sorted(name for name in LISTED_NAMES if name not in used) == []


_INTERNALS = ("vllm.model_executor.", "vllm.compilation.", "transformers.models.")


def test_what_models_import_of_upstreams_inside_is_listed() -> None:
    """Configurations of transformers apart: they are a checkpoint's format."""
    unlisted = {
        (node.module, alias.name)
        for _, tree in trees(PACKAGE / "models")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_INTERNALS)
        for alias in node.names
        if not alias.name.endswith("Config")
    } - LISTED
    assert unlisted == set()


def _words(tree: ast.Module) -> set[str]:
    """Every name in the code, also what is set on a class; of strings the last part, as qualified
    names are given as strings.
    """
    words: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute():
                words.add(node.attr)
            case ast.Name(ctx=ast.Store()):
                words.add(node.id)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                words.add(node.name)
            case ast.alias():
                words.add(node.name)
            case ast.keyword(arg=str()):
                words.add(node.arg or "")
            case ast.Constant(value=str()):
                words.add(str(node.value).rpartition(".")[2])
    return words


def _is_listed(cls: type, name: str) -> bool:
    return any((base.__module__, f"{base.__qualname__}.{name}") in LISTED for base in cls.__mro__)


@pytest.mark.parametrize("cls", EXTENDING, ids=lambda cls: cls.__qualname__)
def test_every_override_is_listed(cls: type) -> None:
    upstream = set().union(*(vars(base) for base in upstream_bases(cls)))
    overridden = {name for name in vars(cls) if name in upstream and not name.startswith("__")}
    fields = set(vars(cls).get("__dataclass_fields__", ()))
    missing = {name for name in overridden - fields if not _is_listed(cls, name)}
    missing -= {name for name in missing if name.startswith("_abc_")}
    assert missing == set()


@pytest.mark.parametrize("cls", EXTENDING, ids=lambda cls: cls.__qualname__)
def test_what_a_subclass_reads_of_upstream_is_listed(cls: type) -> None:
    own: set[str] = set()
    for base in own_bases(cls):
        own |= _defined_by(ast.parse(textwrap.dedent(inspect.getsource(base))))
    upstream: set[str] = set().union(*(attribute_names(base) for base in upstream_bases(cls)))
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    missing = {n for n in (used & upstream) - own if not _is_listed(cls, n)}
    assert missing == set()
