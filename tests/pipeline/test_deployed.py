"""A topology's edges as the operator wants them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from antiphon.core.budget import EdgeLimits
from antiphon.core.options import Scalar
from antiphon.errors import DeploymentError
from antiphon.pipeline.defaults import fill_defaults
from antiphon.pipeline.deployed import deployed, edge_limits
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.edge_deployment import EdgeDeployment
from antiphon.pipeline.topology import EdgeMode
from sample_pipeline import CODES, SPEECH, TOPOLOGY


def sample(**edges: EdgeDeployment) -> Deployment:
    return Deployment(pipeline="sample", edges=edges)


def test_without_overrides_it_is_the_topology() -> None:
    assert deployed(TOPOLOGY, sample()) == TOPOLOGY


def test_mode_goes_either_way() -> None:
    streams = deployed(TOPOLOGY, sample(codes=EdgeDeployment(mode="stream")))
    assert [edge.mode for edge in streams.edges] == [EdgeMode.FULL, EdgeMode.STREAM]
    back = deployed(streams, sample(codes=EdgeDeployment(mode="full")))
    assert back == TOPOLOGY


def test_an_edge_that_does_not_stream_stays_full() -> None:
    whole = replace(TOPOLOGY, edges=(SPEECH, replace(CODES, streams=False)))
    assert deployed(whole, sample(codes=EdgeDeployment(mode="full"))) == whole
    message = r"^edges\.codes\.mode: edge codes gives code2wav everything at once .*; remove it"
    with pytest.raises(DeploymentError, match=message):
        deployed(whole, sample(codes=EdgeDeployment(mode="stream")))


def test_parts_stay_parts() -> None:
    found = deployed(TOPOLOGY, sample(speech=EdgeDeployment(mode="stream")))
    assert found.edges[0] == replace(SPEECH, mode=EdgeMode.STREAM)


def test_options_are_merged() -> None:
    edge = replace(CODES, options={"first": 256, "ramp": 2})
    topology = replace(TOPOLOGY, edges=(SPEECH, edge))
    found = deployed(topology, sample(codes=EdgeDeployment(options={"ramp": 4})))
    assert found.edges[1].options == {"first": 256, "ramp": 4}


def test_filled_deployment_gives_the_same() -> None:
    """Filling settles what is in force, and does not change it."""
    given = sample(codes=EdgeDeployment(mode="stream", options={"first": 64}))
    filled = fill_defaults(TOPOLOGY, given, device="cpu")
    once = deployed(TOPOLOGY, filled)
    assert once == deployed(TOPOLOGY, given) != TOPOLOGY
    assert deployed(once, filled) == once


@pytest.mark.parametrize(
    ("edge", "options", "message"),
    [
        ("codes", {"frist": 8}, "frist: edge codes has no such option; did you mean first?"),
        ("speech", {"first": 8}, "first: edge speech has no such option; it has none"),
        ("codes", {"first": "8"}, "first: expected int, got str"),
        ("codes", {"first": 8.0}, "first: expected int, got float"),
        ("codes", {"first": True}, "first: expected int, got bool"),
    ],
)
def test_wrong_option_is_named_with_its_path(
    edge: str, options: dict[str, Scalar], message: str
) -> None:
    with pytest.raises(DeploymentError) as caught:
        deployed(TOPOLOGY, sample(**{edge: EdgeDeployment(options=options)}))
    assert str(caught.value) == f"edges.{edge}.options.{message}"


def test_whole_number_for_a_fraction() -> None:
    topology = replace(TOPOLOGY, edges=(SPEECH, replace(CODES, options={"overlap_s": 0.5})))
    found = deployed(topology, sample(codes=EdgeDeployment(options={"overlap_s": 1})))
    assert found.edges[1].options == {"overlap_s": 1}


def test_limits_in_force() -> None:
    given = sample(codes=EdgeDeployment(request_chunks=2, request_bytes="1KiB"))
    assert edge_limits(given, CODES) == EdgeLimits(request_chunks=2, request_bytes=1024)
    assert edge_limits(given, SPEECH) == EdgeLimits()
    wide = replace(CODES, limits=EdgeLimits(request_chunks=900, total_chunks=900))
    expected = EdgeLimits(request_chunks=2, request_bytes=1024, total_chunks=900)
    assert edge_limits(given, wide) == expected
