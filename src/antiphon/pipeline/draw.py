"""Pipelines as text, for `antiphon pipelines`."""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.pipeline.topology import Edge, EdgeMode, Entry, Stage, Topology

_LINE = {EdgeMode.FULL: "─", EdgeMode.STREAM: "~"}


def summary(topology: Topology) -> str:
    """One line: name, stages along the way, what it gives, what it is for."""
    stages = " → ".join(topology.stage_names)
    outputs = ", ".join(stage.output for stage in topology.stages if stage.output)
    return f"{topology.name}  {stages}  ({outputs})  {topology.description}"


def draw(topology: Topology) -> str:
    """The graph as a tree from each entry's stage, adapters and models named beside it."""
    lines = [f"{topology.name}: {topology.description}"]
    for stage in topology.stages:
        if topology.edge_into(stage.name) is None:
            lines += ["", *_draw_stage(topology, stage)]
    return "\n".join(lines)


def _draw_stage(topology: Topology, stage: Stage) -> list[str]:
    edges = topology.edges_from(stage.name)
    bar = "│" if edges else " "
    lines = [f"● {stage.name} ({stage.kind}){_gives(topology, stage)}"]
    lines += [f"{bar}   {line}" for line in _entries_at(topology, stage)]
    lines += [f"{bar}   model: {stage.model}"]
    if stage.sampling:
        lines += [f"{bar}   sampling: {_options(stage.sampling)}"]
    for edge in edges:
        last = edge is edges[-1]
        below = [*_draw_edge(edge), *_draw_stage(topology, topology.stage(edge.consumer))]
        lines.append("│")
        lines.append(f"{'└' if last else '├'}{_LINE[edge.mode]} {below[0]}")
        lines += [f"{' ' if last else '│'}  {line}".rstrip() for line in below[1:]]
    return [line.rstrip() for line in lines]


def _entries_at(topology: Topology, stage: Stage) -> list[str]:
    lines = []
    for entry in topology.entries:
        if entry.stage == stage.name:
            lines.append(f"entry {entry.name}: {entry.adapter}{_takes(entry)}")
        if entry.ear is not None and entry.ear.stage == stage.name:
            lines.append(f"entry {entry.name}, requests with audio: {entry.ear.adapter}")
    return lines


def _gives(topology: Topology, stage: Stage) -> str:
    if stage.output is None:
        return ""
    rate = f", {topology.sample_rate} Hz" if stage.output == "audio" else ""
    return f" ⇒ {stage.output}{rate}"


def _takes(entry: Entry) -> str:
    """What it takes beside text, or in place of it; what its ear takes stands there."""
    more = [kind for kind in entry.inputs if kind != "text" and entry.ear is None]
    if "text" not in entry.inputs:
        return f" (takes {', '.join((*more, *entry.params))})"
    more += entry.params
    return f" (also {', '.join(more)})" if more else ""


def _options(options: Mapping[str, object]) -> str:
    return ", ".join(f"{key}={value}" for key, value in options.items())


def _draw_edge(edge: Edge) -> list[str]:
    how = [str(edge.mode)]
    if edge.split:
        how.append("one request per part")
    if edge.join:
        how.append("one request of all parts")
    if edge.kv is not None:
        token = "" if edge.kv.token_id is None else f" {edge.kv.token_id}"
        how.append(f"kv {edge.kv.type}{token}")
    if edge.shared:
        how.append("shared by companions")
    if edge.options:
        how.append(_options(edge.options))
    return [
        f"{edge.name} ({', '.join(how)})",
        f"  out: {edge.output_adapter}",
        f"  in:  {edge.input_adapter}",
    ]
