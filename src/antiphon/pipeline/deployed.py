"""A topology's edges as a deployment runs them. Pure; neither vllm nor torch is imported here."""

from __future__ import annotations

import dataclasses

import msgspec

from antiphon.core.budget import EdgeLimits
from antiphon.core.kv_handoff import KvSettings
from antiphon.errors import DeploymentError
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.edge_deployment import EdgeDeployment
from antiphon.pipeline.topology import Edge, EdgeMode, Topology
from antiphon.pipeline.values import parse_bytes


def deployed(topology: Topology, deployment: Deployment) -> Topology:
    """`topology` with every edge's effective mode and options; what runs, and what routes by it.

    The deployment need not be filled. Doing it again changes nothing. Raises DeploymentError for
    what an edge does not declare or cannot do, TopologyError if the graph is not valid this way.
    """
    edges = [_deployed(topology, edge, _given(deployment, edge.name)) for edge in topology.edges]
    return dataclasses.replace(topology, edges=tuple(edges))


def edge_limits(deployment: Deployment, edge: Edge) -> EdgeLimits:
    """What may be outstanding on an edge; the topology's word where nothing is given."""
    given = msgspec.structs.asdict(_given(deployment, edge.name))
    limits = {field: given[field] for field in EdgeLimits.__struct_fields__}
    return msgspec.structs.replace(
        edge.limits,
        **{field: parse_bytes(size) for field, size in limits.items() if size is not None},
    )


def kv_settings(deployment: Deployment, name: str) -> KvSettings:
    """How an edge's KV caches are handed on; the defaults of KvSettings where nothing is given."""
    given = msgspec.structs.asdict(_given(deployment, name))
    settings = {field: given[field] for field in KvSettings.__struct_fields__}
    return KvSettings(**{field: value for field, value in settings.items() if value is not None})


def _given(deployment: Deployment, name: str) -> EdgeDeployment:
    return deployment.edges.get(name, EdgeDeployment())


def _deployed(topology: Topology, edge: Edge, given: EdgeDeployment) -> Edge:
    try:
        given.check_edge(topology, edge)
    except DeploymentError as error:
        raise DeploymentError(f"edges.{edge.name}.{error}") from None
    mode = edge.mode if given.mode is None else EdgeMode(given.mode)
    return dataclasses.replace(edge, mode=mode, options={**edge.options, **given.options})
