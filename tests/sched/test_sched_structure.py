"""The stage's schedulers extend upstream's by few, short overrides that leave its loop alone."""

from __future__ import annotations

import ast
import inspect
import textwrap

import msgspec
import pytest
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from antiphon.core.kv_handoff import KvTransfer
from antiphon.core.options import ConnectorSpec, OutEdge, StageOptions
from antiphon.pipeline.topology import StageKind
from antiphon.sched.ar import ARMixin, ARScheduler, AsyncARScheduler
from antiphon.sched.generation import GenerationScheduler
from antiphon.sched.mixin import StageSchedulerMixin
from antiphon.stage.resolve import SCHEDULERS
from factory import make_scheduler

MAX_OVERRIDES = 8
MAX_LINES = 25

OURS = [StageSchedulerMixin, ARMixin, ARScheduler, AsyncARScheduler, GenerationScheduler]


def overrides(cls: type) -> dict[str, ast.FunctionDef]:
    """The methods of `cls` itself that upstream defines too."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    upstream = set(dir(AsyncScheduler))
    methods = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {node.name: node for node in methods if node.name in upstream}


def calls_super(method: ast.FunctionDef) -> bool:
    """Whether it calls the method of its own name on `super()`."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == method.name
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id == "super"
        for node in ast.walk(method)
    )


@pytest.mark.parametrize("cls", OURS)
def test_overrides_are_few(cls: type) -> None:
    inherited = {name for base in cls.__mro__ if base in OURS for name in overrides(base)}
    assert len(inherited) <= MAX_OVERRIDES
    assert {"schedule", "update_from_output"} <= inherited


@pytest.mark.parametrize("cls", OURS)
def test_overrides_are_short_and_call_super(cls: type) -> None:
    for name, method in overrides(cls).items():
        assert method.end_lineno is not None
        assert method.end_lineno - method.lineno + 1 <= MAX_LINES, name
        assert calls_super(method), name


@pytest.mark.parametrize(
    ("overlap", "base", "expected"),
    [(False, Scheduler, ARScheduler), (True, AsyncScheduler, AsyncARScheduler)],
)
def test_the_class_follows_async_scheduling(overlap: bool, base: type, expected: type) -> None:
    """Upstream switches async scheduling off for a custom class that is no AsyncScheduler."""
    name = SCHEDULERS[StageKind.AR, overlap]
    assert resolve_obj_by_qualname(name) is expected  # as upstream reads `scheduler_cls`
    assert issubclass(expected, base)
    assert issubclass(expected, AsyncScheduler) is overlap


def test_without_a_kv_edge_nothing_of_ours_runs_per_request() -> None:
    """`_update_request_with_output` is called for every request in every step."""
    edge = OutEdge("cache", "module:Class", kv=KvTransfer("prefill_finished"))
    stage = StageOptions("writer", ConnectorSpec("inproc", "structure"))
    handing = msgspec.structs.replace(stage, outputs=(edge,))
    for cls, base in ((ARScheduler, Scheduler), (AsyncARScheduler, AsyncScheduler)):
        overlap = cls is AsyncARScheduler
        plain = make_scheduler(cls, async_scheduling=overlap, options=stage)
        ours = make_scheduler(cls, async_scheduling=overlap, options=handing)
        assert plain._update_request_with_output.__func__ is base._update_request_with_output
        assert ours._update_request_with_output.__func__ is ARMixin._update_request_with_output
