"""A topology's edges as a deployment runs them. Pure; neither vllm nor torch is imported here."""

from __future__ import annotations

import dataclasses

import msgspec

from antiphon.core.budget import EdgeLimits
from antiphon.errors import DeploymentError
from antiphon.pipeline.deployment import Deployment, EdgeDeployment
from antiphon.pipeline.topology import Edge, EdgeMode, Topology
from antiphon.pipeline.values import parse_bytes


def deployed(topology: Topology, deployment: Deployment) -> Topology:
    """`topology` with every edge's effective mode and options; what runs, and what routes by it.

    The deployment need not be filled. Doing it again changes nothing. Raises DeploymentError for
    an option that an edge does not declare, TopologyError if the graph is not valid this way.
    """
    edges = tuple(_deployed(edge, _given(deployment, edge.name)) for edge in topology.edges)
    return dataclasses.replace(topology, edges=edges)


def edge_limits(deployment: Deployment, name: str) -> EdgeLimits:
    """What may be outstanding on an edge; the defaults of EdgeLimits where nothing is given."""
    given = msgspec.structs.asdict(_given(deployment, name))
    limits = {field: given[field] for field in EdgeLimits.__struct_fields__}
    return EdgeLimits(
        **{field: parse_bytes(size) for field, size in limits.items() if size is not None}
    )


def _given(deployment: Deployment, name: str) -> EdgeDeployment:
    return deployment.edges.get(name, EdgeDeployment())


def _deployed(edge: Edge, given: EdgeDeployment) -> Edge:
    try:
        given.check_options(edge)
    except DeploymentError as error:
        raise DeploymentError(f"edges.{edge.name}.{error}") from None
    mode = edge.mode if given.mode is None else EdgeMode(given.mode)
    return dataclasses.replace(edge, mode=mode, options={**edge.options, **given.options})
