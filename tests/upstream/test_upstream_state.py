"""The run-time check of AR-INV-004 sees every way to modify a package, and nothing else."""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

import pytest
from vllm.v1.core.sched.scheduler import Scheduler

from antiphon.sched.ar import ARScheduler
from factory import make_request, make_scheduler, step
from upstream_state import foreign, snapshot

_SOURCE = """
cache = {}
def function(): pass
class Base:
    limit = 1
    def method(self): pass
    @property
    def value(self): return 1
    @classmethod
    def make(cls): return cls()
"""


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package of somebody else's, loaded."""
    module = ModuleType("somebody.engine")
    exec(compile(_SOURCE, "/elsewhere/somebody/engine.py", "exec"), vars(module))  # noqa: S102
    monkeypatch.setitem(sys.modules, "somebody.engine", module)
    return module


def _mine(*args: Any) -> None:
    """A replacement."""


def _theirs(package: Any, source: str) -> Any:
    scope: dict[str, Any] = {"__name__": package.__name__}
    exec(compile(source, "/elsewhere/somebody/other.py", "exec"), scope)  # noqa: S102
    return scope["f"]


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        ("engine", "function", _mine),
        ("engine", "added", _mine),
        ("Base", "method", _mine),
        ("Base", "method", functools.partial(_mine, 1)),
        ("Base", "value", property(_mine)),
        ("Base", "make", classmethod(_mine)),
        ("Base", "added", staticmethod(_mine)),
    ],
)
def test_a_replacement_of_ours_is_seen(package: Any, owner: str, name: str, value: Any) -> None:
    before = snapshot("somebody")
    setattr(package if owner == "engine" else package.Base, name, value)
    (line,) = foreign(before, "somebody")
    assert f".{name} " in line


def test_an_exchange_for_something_of_another_s_is_seen(package: Any) -> None:
    before = snapshot("somebody")
    package.Base.method = _theirs(package, "def f(self): pass")
    (line,) = foreign(before, "somebody")
    assert "Base.method was exchanged" in line


def test_a_decorator_of_another_s_does_not_hide_ours(package: Any) -> None:
    decorate = _theirs(package, "def f(g):\n    def inner(self): return g()\n    return inner")
    before = snapshot("somebody")
    package.Base.added = decorate(_mine)
    (line,) = foreign(before, "somebody")
    assert "Base.added" in line


def test_a_removal_is_seen(package: Any) -> None:
    before = snapshot("somebody")
    del package.Base.method
    assert foreign(before, "somebody") == ["somebody.engine.Base.method was removed"]


def test_plain_data_is_the_package_s_own_business(package: Any) -> None:
    before = snapshot("somebody")
    package.cache = {"x": 1}
    package.Base.limit = 2
    assert foreign(before, "somebody") == []


def test_schedulers_leave_vllm_as_it_was() -> None:
    before = snapshot()
    for cls in (Scheduler, ARScheduler):
        scheduler = make_scheduler(cls)
        scheduler.add_request(make_request("a"))
        step(scheduler)
    assert foreign(before) == []
