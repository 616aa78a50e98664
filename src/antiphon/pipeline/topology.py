"""The topology: a directed graph of stages, declared once by the pipeline's author.

Frozen, and validated at construction. Names in "module:attribute" form are resolved where they are
needed, never here, so that listing pipelines imports no model code.

Edges are `full` or `stream`, and an operator may run one in the other mode (`deployed`). A stage
has one incoming edge at most; a topology that asks for more is rejected here and not when a request
needs it.
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from antiphon.core.options import Scalar
from antiphon.errors import InvalidRequestError, TopologyError
from antiphon.pipeline.suggest import did_you_mean
from antiphon.pipeline.values import is_plain, is_target

_NAME = re.compile(r"[a-z0-9_-]+")


class StageKind(enum.StrEnum):
    """`ar` samples tokens step by step, `generation` makes one forward per input."""

    AR = "ar"
    GENERATION = "generation"


class EdgeMode(enum.StrEnum):
    """`full`: payloads cross when the producer finishes. `stream`: while it runs."""

    FULL = "full"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Stage:
    """A node of the graph.

    `model` is "module:function"; `function(progress)` returns the checkpoint's folder as a
    `pathlib.Path`, fetches it if need be, and calls `progress(phase, fraction)` with what it is
    doing and how much of it is done (0 to 1, None if it cannot tell).
    `engine` holds vLLM EngineArgs that the model needs, plain data only: it crosses a process
    boundary. `sampling` holds default SamplingParams, plain data too.
    """

    name: str
    kind: StageKind
    model: str
    output: str | None = None  # modality that leaves the pipeline here: "text", "audio", …
    engine: Mapping[str, object] = field(default_factory=dict)
    sampling: Mapping[str, object] = field(default_factory=dict)
    atomic_inputs: bool = False  # generation: an input over the token budget is an error
    recomputes: bool = True  # ar: False, a request that loses its blocks ends with an error


@dataclass(frozen=True, slots=True)
class Edge:
    """Producer to consumer.

    Without `split` a full edge carries one payload, and the chunks of a stream edge go to one
    consumer request that runs meanwhile. With `split`, in either mode, each payload is a part with
    a consumer request of its own. `options` are the adapters' own; an operator may change the
    values of those that are declared here.
    """

    name: str
    producer: str
    consumer: str
    mode: EdgeMode
    output_adapter: str  # "module:Class", an OutputAdapterFactory
    input_adapter: str  # "module:Class", an InputAdapterFactory
    split: bool = False
    options: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """A way into the pipeline: the stage that a kind of call starts at, and its prompts' maker.

    `adapter` is "module:Class"; the class is made once with the checkpoint's folder and called with
    an `EntryRequest`; it returns one list of token ids per part.
    """

    name: str
    stage: str
    adapter: str


@dataclass(frozen=True, slots=True)
class Topology:
    """A whole pipeline. Construction raises TopologyError if the graph is not valid."""

    name: str
    description: str
    stages: tuple[Stage, ...]
    edges: tuple[Edge, ...]
    entries: tuple[Entry, ...]
    sample_rate: int = 24_000  # of the audio output, Hz

    def __post_init__(self) -> None:
        _check_names(self)
        for stage in self.stages:
            _check_stage(stage)
        for edge in self.edges:
            _check_edge(self, edge)
        for entry in self.entries:
            _check_entry(self, entry)
        _check_graph(self)
        if self.sample_rate <= 0:
            raise TopologyError(
                f"pipeline {self.name}: sample_rate is {self.sample_rate}; it has to be positive"
            )

    def stage(self, name: str) -> Stage:
        """The stage of this name; TopologyError if there is none."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise TopologyError(
            f"pipeline {self.name} has no stage {name!r}{did_you_mean(name, self.stage_names)}"
        )

    def entry(self, name: str) -> Entry:
        """The entry of this name; InvalidRequestError if there is none, as callers choose it."""
        for entry in self.entries:
            if entry.name == name:
                return entry
        known = (entry.name for entry in self.entries)
        raise InvalidRequestError(
            f"pipeline {self.name} has no entry {name!r}{did_you_mean(name, known)}"
        )

    def edges_from(self, name: str) -> tuple[Edge, ...]:
        """The edges that leave a stage, in the order of their declaration."""
        return tuple(edge for edge in self.edges if edge.producer == name)

    def edge_into(self, name: str) -> Edge | None:
        """The edge that ends at a stage, or None for one that only entries lead to."""
        return next((edge for edge in self.edges if edge.consumer == name), None)

    @property
    def stage_names(self) -> tuple[str, ...]:
        return tuple(stage.name for stage in self.stages)

    def outputs_from(self, entry: str) -> tuple[str, ...]:
        """The modalities that a request through this entry can give, nearest stage first."""
        order = _downstream(self, self.entry(entry).stage)
        return tuple(stage.output for stage in order if stage.output is not None)

    def path_from(self, entry: str, modalities: Iterable[str]) -> tuple[Stage, ...]:
        """The stages that a request visits, producers first: no further than its outputs need.

        Raises InvalidRequestError for an unknown entry, for no modality at all, and for a modality
        that this entry cannot give.
        """
        wanted = tuple(modalities)
        possible = self.outputs_from(entry)
        if not wanted:
            raise InvalidRequestError(
                f"no modality asked for; entry {entry} gives {', '.join(possible)}"
            )
        for modality in wanted:
            if modality not in possible:
                raise InvalidRequestError(
                    f"entry {entry} of pipeline {self.name} does not give {modality!r}"
                    f"{did_you_mean(modality, possible)}"
                )
        order = _downstream(self, self.entry(entry).stage)
        needed: set[str] = set()
        for stage in reversed(order):
            feeds = any(edge.consumer in needed for edge in self.edges_from(stage.name))
            if stage.output in wanted or feeds:
                needed.add(stage.name)
        return tuple(stage for stage in order if stage.name in needed)


def _downstream(topology: Topology, start: str) -> tuple[Stage, ...]:
    """`start` and everything after it; a producer comes before its consumers."""
    order = [topology.stage(start)]
    for stage in order:  # grows while it is walked; the graph is a forest, so nothing comes twice
        order += [topology.stage(edge.consumer) for edge in topology.edges_from(stage.name)]
    return tuple(order)


def _check_names(topology: Topology) -> None:
    groups = {
        "pipeline": [topology.name],
        "stage": list(topology.stage_names),
        "edge": [edge.name for edge in topology.edges],
        "entry": [entry.name for entry in topology.entries],
        "output": [stage.output for stage in topology.stages if stage.output is not None],
    }
    for what, names in groups.items():
        for name in names:
            if not _NAME.fullmatch(name):
                raise TopologyError(
                    f"{what} name {name!r} of pipeline {topology.name} is not valid;"
                    " use lower-case letters, digits, _ and -"
                )
        for name, count in Counter(names).items():
            if count > 1:
                raise TopologyError(
                    f"pipeline {topology.name} declares {what} {name!r} {count} times;"
                    " give each a name of its own"
                )


def _check_target(owner: str, role: str, target: str) -> None:
    if not is_target(target):
        raise TopologyError(
            f"{role} of {owner} is {target!r}; write it as 'package.module:attribute'"
        )


def _check_stage(stage: Stage) -> None:
    _check_target(f"stage {stage.name}", "model", stage.model)
    for what, values in (("engine argument", stage.engine), ("sampling", stage.sampling)):
        for key, value in values.items():
            if not is_plain(value):
                raise TopologyError(
                    f"{what} {key!r} of stage {stage.name} is a {type(value).__name__}, which"
                    " cannot cross a process boundary; use plain data, and a 'module:attribute'"
                    " string for code"
                )
    if stage.kind is StageKind.GENERATION and stage.sampling:
        raise TopologyError(
            f"stage {stage.name} is a generation stage and samples nothing; remove its sampling"
        )
    if stage.kind is StageKind.AR and stage.atomic_inputs:
        raise TopologyError(
            f"stage {stage.name} is an ar stage, whose prompts may be chunked; remove atomic_inputs"
        )
    if stage.kind is StageKind.GENERATION and not stage.recomputes:
        raise TopologyError(
            f"stage {stage.name} is a generation stage, whose requests are never preempted; remove"
            " recomputes"
        )


def _check_edge(topology: Topology, edge: Edge) -> None:
    owner = f"edge {edge.name}"
    for role, stage in (("producer", edge.producer), ("consumer", edge.consumer)):
        if stage not in topology.stage_names:
            raise TopologyError(
                f"{role} of {owner} is {stage!r}, which is no stage of pipeline {topology.name}"
                f"{did_you_mean(stage, topology.stage_names)}"
            )
    _check_target(owner, "output_adapter", edge.output_adapter)
    _check_target(owner, "input_adapter", edge.input_adapter)
    for key, value in edge.options.items():
        if not isinstance(value, Scalar):
            raise TopologyError(
                f"option {key!r} of {owner} is a {type(value).__name__}; use a number, a text or a"
                " truth value"
            )


def _check_entry(topology: Topology, entry: Entry) -> None:
    if entry.stage not in topology.stage_names:
        raise TopologyError(
            f"entry {entry.name} starts at {entry.stage!r}, which is no stage of pipeline"
            f" {topology.name}{did_you_mean(entry.stage, topology.stage_names)}"
        )
    _check_target(f"entry {entry.name}", "adapter", entry.adapter)


def _check_graph(topology: Topology) -> None:
    if not any(stage.output for stage in topology.stages):
        raise TopologyError(
            f"no stage of pipeline {topology.name} has an output; set it on the one that ends it"
        )
    if not topology.entries:
        raise TopologyError(f"pipeline {topology.name} has no entry; declare where requests start")
    for name, count in Counter(edge.consumer for edge in topology.edges).items():
        if count > 1:
            raise TopologyError(
                f"stage {name} has {count} incoming edges, and this version joins none;"
                " leave it one"
            )
    _check_cycles(topology)
    _check_branches(topology)
    reached = {
        stage.name for entry in topology.entries for stage in _downstream(topology, entry.stage)
    }
    for stage in topology.stages:
        if stage.name not in reached:
            raise TopologyError(
                f"no entry leads to stage {stage.name}; add an edge or an entry, or remove it"
            )
        if stage.output is None and not topology.edges_from(stage.name):
            raise TopologyError(
                f"stage {stage.name} has neither an output nor an edge that leaves it; add one"
            )


def _check_branches(topology: Topology) -> None:
    """Requests in mid-decode keep their seats while they wait. Behind one producer two such stages
    could seat them in different orders, and wait for each other.
    """
    for stage in topology.stages:
        into = [e.name for e in topology.edges_from(stage.name) if _streams_to_ar(topology, e)]
        if len(into) > 1:
            raise TopologyError(
                f"stage {stage.name} feeds two ar stages by streams ({', '.join(into)}), whose"
                " requests could wait for each other; let one of the edges be full"
            )


def _streams_to_ar(topology: Topology, edge: Edge) -> bool:
    """Whether chunks reach an ar stage by this edge, also through generation stages."""
    if edge.mode is not EdgeMode.STREAM or edge.split:
        return False
    consumer = topology.stage(edge.consumer)
    behind = topology.edges_from(consumer.name)
    return consumer.kind is StageKind.AR or any(_streams_to_ar(topology, e) for e in behind)


def _check_cycles(topology: Topology) -> None:
    """Every stage has one incoming edge at most, so walking upstream finds any cycle."""
    for stage in topology.stages:
        seen = [stage.name]
        edge = topology.edge_into(stage.name)
        while edge is not None and edge.producer not in seen:
            seen.append(edge.producer)
            edge = topology.edge_into(edge.producer)
        if edge is not None:
            cycle = seen[seen.index(edge.producer) :]
            drawn = " -> ".join([cycle[0], *reversed(cycle)])
            raise TopologyError(
                f"edges of pipeline {topology.name} form a cycle: {drawn}; remove one of them"
            )
