"""Whatever keeps state by request or payload says itself whether it is whole."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from source import PACKAGE, trees

PACKAGES = (
    "core",
    "connector",
    "sched",
    "worker",
    "stage",
    "orchestrator",
    "observe",
    "serve",
    "upstream",
    "testing",
)
TABLES = frozenset({"dict", "set", "Counter", "OrderedDict", "defaultdict"})
CHECK = "check_integrity"

# Classes that keep such a table and have no check of their own, and why that will do.
WITHOUT = {
    "connector.inproc._Store": "its connectors check it",
    "core.budget._Record": "one request's; EdgeBudget checks it",
    "core.tickets.StageWork": "one step's",
    "observe.exposition.Exposition": "one scrape's",
    "orchestrator.administration.Administration": "by stage; filled once, when they start",
    "orchestrator.dispatch.Dispatch": "Router checks it",
    "orchestrator.flow.Flow": "one request's, and goes with it",
    "orchestrator.gathered.Gathered": "one request's, and goes with it",
    "orchestrator.stages.StageSet": "by replica, of which there always are as many",
    "orchestrator.transcript.Transcript": "one request's, and goes with it",
    "sched.events.StageEvents": "what happened since the host last asked",
    "serve.connection.Closings": "made anew every second of the connections that there are",
    "serve.metrics._Figures": "one scrape's",
    "serve.realtime.socket.RealtimeSocket": "one connection's tasks, which it ends with itself",
    "upstream.statistics.EngineStatistics": "StageEngine checks it",
    "worker.chunks.Chunks": "one step's",
    "worker.kv_inlets.CacheInlets": "Inlets checks it",
    "worker.side_outputs.OutputTap": "one step's",
}


def stores() -> Iterator[tuple[str, bool]]:
    """(name, whether it has a check) of each class that begins with an empty table."""
    for package in PACKAGES:
        for path, tree in trees(PACKAGE / package):
            module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
            for cls in ast.walk(tree):
                if isinstance(cls, ast.ClassDef) and any(map(_is_empty_table, _first_values(cls))):
                    methods = {f.name for f in cls.body if isinstance(f, ast.FunctionDef)}
                    yield f"{module}.{cls.name}", CHECK in methods


def _first_values(cls: ast.ClassDef) -> Iterator[ast.expr]:
    """What its objects' attributes are set to when they are made; of a frozen one, nothing."""
    if any("frozen=True" in ast.unparse(part) for part in cls.decorator_list):
        return
    for part in cls.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.value, ast.Call):
            yield part.value  # a dataclass's `field`
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            for statement in ast.walk(part):
                if not isinstance(statement, ast.Assign | ast.AnnAssign) or not statement.value:
                    continue
                if "self." in ast.unparse(statement).split("=", maxsplit=1)[0]:
                    yield statement.value


def _is_empty_table(value: ast.expr) -> bool:
    if isinstance(value, ast.Dict):
        return not value.keys
    if not isinstance(value, ast.Call):
        return False
    name = value.func
    if isinstance(name, ast.Name) and name.id == "field":
        made = {k.value.id for k in value.keywords if isinstance(k.value, ast.Name)}
        return bool(made & TABLES)
    return isinstance(name, ast.Name) and name.id in TABLES and not value.args


def test_every_store_checks_itself() -> None:
    """A new one without `check_integrity` fails here: write it, and have its owner's call it."""
    found = dict(stores())
    assert {name for name, has in found.items() if not has} == WITHOUT.keys()


def test_the_stores_are_found() -> None:
    """The scan itself: some that are known, of every way to write them."""
    found = dict(stores())
    assert len(found) > 30
    for name in (
        "connector.inproc._Store",  # dataclass, field(default_factory=dict)
        "core.gate.Gate",  # {} and Counter()
        "core.window.StreamWindow",  # set()
        "observe.timelines.Timelines",  # OrderedDict()
        "orchestrator.router.Router",
        "worker.stage_io.StageIO",
    ):
        assert name in found


def test_a_store_without_a_check_is_noticed() -> None:
    (cls,) = ast.parse(
        "class Forgetful:\n    def __init__(self):\n        self._kept: dict[str, int] = {}\n"
    ).body
    assert isinstance(cls, ast.ClassDef)
    assert any(map(_is_empty_table, _first_values(cls)))
