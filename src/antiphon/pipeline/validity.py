"""Whether a topology is one that can run: each mistake is one sentence that says what to change.

A stage has one incoming edge at most; a topology that asks for more is rejected here and not when a
request needs it.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from antiphon.core.options import Preemption, Scalar
from antiphon.errors import TopologyError
from antiphon.pipeline.elements import Edge, EdgeMode, Stage, StageKind
from antiphon.pipeline.entry_validity import check_entry, check_target, check_way
from antiphon.pipeline.suggest import did_you_mean
from antiphon.pipeline.values import is_plain

if TYPE_CHECKING:
    from antiphon.pipeline.topology import Topology

_NAME = re.compile(r"[a-z0-9_-]+")
_PIPELINE = re.compile(r"[a-z0-9_.-]+")  # of a model, which may have a version


def check_topology(topology: Topology) -> None:
    """Raise TopologyError for the first mistake."""
    _check_names(topology)
    for stage in topology.stages:
        _check_stage(stage)
    for edge in topology.edges:
        _check_edge(topology, edge)
    for entry in topology.entries:
        check_entry(topology, entry)
    _check_graph(topology)
    for entry in topology.entries:
        check_way(topology, entry)
    if topology.sample_rate <= 0:
        raise TopologyError(
            f"pipeline {topology.name}: sample_rate is {topology.sample_rate}; it has to be"
            " positive"
        )


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
            if not (_PIPELINE if what == "pipeline" else _NAME).fullmatch(name):
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


def _check_stage(stage: Stage) -> None:
    check_target(f"stage {stage.name}", "model", stage.model)
    roles = {"config": stage.config, "prompt_adapter": stage.prompt_adapter, "facts": stage.facts}
    for role, target in roles.items():
        if target is not None:
            check_target(f"stage {stage.name}", role, target)
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
    if not isinstance(stage.preemption, Preemption):
        policies = ", ".join(Preemption)
        raise TopologyError(
            f"stage {stage.name} has preemption {stage.preemption!r}; take a Preemption: {policies}"
        )
    if stage.kind is StageKind.GENERATION and stage.preemption is not Preemption.RECOMPUTE:
        raise TopologyError(
            f"stage {stage.name} is a generation stage, whose requests are never preempted; remove"
            " preemption"
        )


def _check_edge(topology: Topology, edge: Edge) -> None:
    owner = f"edge {edge.name}"
    for role, stage in (("producer", edge.producer), ("consumer", edge.consumer)):
        if stage not in topology.stage_names:
            raise TopologyError(
                f"{role} of {owner} is {stage!r}, which is no stage of pipeline {topology.name}"
                f"{did_you_mean(stage, topology.stage_names)}"
            )
    check_target(owner, "output_adapter", edge.output_adapter)
    check_target(owner, "input_adapter", edge.input_adapter)
    for key, value in edge.options.items():
        if not isinstance(value, Scalar):
            raise TopologyError(
                f"option {key!r} of {owner} is a {type(value).__name__}; use a number, a text or a"
                " truth value"
            )
    if not edge.streams and edge.mode is not EdgeMode.FULL:
        raise TopologyError(
            f"{owner} does not stream, and has mode {edge.mode}; make it full, or set streams"
        )
    if edge.kv is not None:
        _check_kv(topology, edge)
    if edge.shared:
        _check_shared(topology, edge)
    if edge.join:
        _check_join(topology, edge)


def _check_kv(topology: Topology, edge: Edge) -> None:
    """A cache crosses once, whole, and out of a stage that has one."""
    _require_one_payload(edge, "hands a KV cache on, which crosses once", "kv")
    if topology.stage(edge.producer).kind is not StageKind.AR:
        raise TopologyError(
            f"edge {edge.name} hands on the KV cache of {edge.producer}, a generation stage, which"
            " has none; remove kv, or let the edge begin at an ar stage"
        )
    caches = [e.name for e in topology.edges_from(edge.producer) if e.kv is not None]
    if len(caches) > 1:
        raise TopologyError(
            f"stage {edge.producer} hands its KV cache on by {len(caches)} edges"
            f" ({', '.join(caches)}); keep kv on one of them"
        )


def _check_shared(topology: Topology, edge: Edge) -> None:
    """Companions are whole answers of one call, so nothing may follow them."""
    _require_one_payload(edge, "is shared by requests that each need its one payload", "shared")
    consumer = topology.stage(edge.consumer)
    behind = topology.edges_from(consumer.name)
    if consumer.kind is not StageKind.GENERATION or consumer.output is None or behind:
        raise TopologyError(
            f"edge {edge.name} is shared by several requests of stage {consumer.name}, which has to"
            " be a generation stage with an output and without edges that leave it; remove shared"
        )


def _check_join(topology: Topology, edge: Edge) -> None:
    """How many parts there are has to be known before the first of them is there: an entry says."""
    _require_one_payload(edge, "joins parts that bring one payload each", "join")
    for other, field in ((edge.kv, "kv"), (edge.shared or None, "shared")):
        if other is not None:
            raise TopologyError(
                f"edge {edge.name} joins parts and cannot be {field} as well; remove one of them"
            )
    if topology.edge_into(edge.producer) is not None:
        raise TopologyError(
            f"edge {edge.name} joins the parts of {edge.producer}, which is fed by another stage"
            " and does not know their number; join where requests enter"
        )
    if topology.stage(edge.consumer).kind is not StageKind.AR:
        raise TopologyError(
            f"edge {edge.name} joins parts for {edge.consumer}, a generation stage, which makes"
            " a forward of each; let it end at an ar stage, or remove join"
        )


def _require_one_payload(edge: Edge, why: str, field: str) -> None:
    if edge.split:
        raise TopologyError(
            f"edge {edge.name} {why}, and is split into parts; remove split or {field}"
        )
    if edge.mode is not EdgeMode.FULL:
        raise TopologyError(
            f"edge {edge.name} {why}, and has mode {edge.mode}; make it full or remove {field}"
        )


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
        stage.name
        for entry in topology.entries
        for start in {entry.stage, entry.start(heard=True)}
        for stage in topology.downstream(start)
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
