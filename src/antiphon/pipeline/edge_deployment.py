"""What a deployment says about one edge."""

from __future__ import annotations

from typing import Literal

import msgspec

from antiphon.core.kv_handoff import KvSettings
from antiphon.core.options import Scalar
from antiphon.errors import DeploymentError
from antiphon.pipeline.checks import check_counts, check_timeout, count_bytes
from antiphon.pipeline.suggest import did_you_mean
from antiphon.pipeline.topology import Edge, StageKind, Topology
from antiphon.pipeline.values import scalar_type

Mode = Literal["full", "stream"]
OnFailure = Literal["fail", "recompute"]


class EdgeDeployment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How one edge carries payloads. Raises DeploymentError, starting with the field's name."""

    mode: Mode | None = None
    """full: payloads cross when the producer finishes; stream: while it runs.

    None is the topology's word.
    """

    request_chunks: int | None = None
    """Chunks of one request that may be sent and not used up yet; then its producer waits.

    None is 64. On edges that hand a KV cache on nobody waits: each request sends one.
    """

    request_bytes: int | str | None = None
    """The same in bytes, or as text such as 8MiB. None is 16MiB."""

    total_chunks: int | None = None
    """Chunks of all requests together; then those wait that have one under way themselves.

    None is 1024.
    """

    total_bytes: int | str | None = None
    """The same in bytes, or as text such as 64MiB. None is 128MiB."""

    options: dict[str, Scalar] = {}
    """Options of the edge's adapters, in place of the topology's: numbers, texts, truth values."""

    on_failure: OnFailure | None = None
    """Edges that hand a KV cache on: what a request does whose cache is lost, late or damaged.

    fail: it ends with an error. recompute: the consuming stage, which has to be an ar stage,
    computes the cache itself from the token ids. None is fail.
    """

    ack_timeout_s: float | None = None
    """Edges that hand a KV cache on: seconds that storing it may take; then its blocks are let go.

    0 waits for ever. None is 60.
    """

    lease_s: float | None = None
    """Edges that hand a KV cache on: seconds that a stored cache is kept for its consumer.

    0 sets no limit. None is 600.
    """

    checksum: bool | None = None
    """Edges that hand a KV cache on: verify its bytes where it arrives, before they are used.

    None is false.
    """

    def __post_init__(self) -> None:
        check_counts(self, "request_chunks", "total_chunks")
        count_bytes(self, "request_bytes", "total_bytes")
        check_timeout("ack_timeout_s", self.ack_timeout_s)
        check_timeout("lease_s", self.lease_s)

    def check_edge(self, topology: Topology, edge: Edge) -> None:
        """Raise DeploymentError, starting with the field's name, for what this edge cannot do."""
        self.check_options(edge)
        if self.mode == "stream" and (why := edge.why_full):
            raise DeploymentError(f"mode: edge {edge.name} {why} and cannot be a stream; remove it")
        for name in KvSettings.__struct_fields__:
            if edge.kv is None and msgspec.structs.asdict(self)[name] is not None:
                raise DeploymentError(
                    f"{name}: edge {edge.name} hands no KV cache on, and this is for those that do;"
                    " remove it"
                )
        consumer = topology.stage(edge.consumer)
        if self.on_failure == "recompute" and consumer.kind is not StageKind.AR:
            raise DeploymentError(
                f"on_failure: stage {consumer.name} is a generation stage, which cannot compute a"
                " KV cache; use fail"
            )

    def check_options(self, edge: Edge) -> None:
        """Raise DeploymentError for an option that the topology's edge lacks, or of another type.

        A whole number is accepted where the topology has a fraction.
        """
        for key, value in self.options.items():
            if key not in edge.options:
                hint = did_you_mean(key, edge.options) or "; it has none"
                raise DeploymentError(f"options.{key}: edge {edge.name} has no such option{hint}")
            declared, given = scalar_type(edge.options[key]), scalar_type(value)
            if given is not declared and (declared, given) != (float, int):
                raise DeploymentError(
                    f"options.{key}: expected {declared.__name__}, got {given.__name__}"
                )
