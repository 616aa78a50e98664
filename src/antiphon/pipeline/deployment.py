"""The deployment: how an operator runs a pipeline on a machine. Frozen, typed, all of it optional.

What is None here is decided by `antiphon.pipeline.defaults`, which takes the topology's word first
and a default that suits the device after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from antiphon.core.kv_handoff import KvSettings
from antiphon.core.options import Scalar
from antiphon.env import LogLevel
from antiphon.errors import DeploymentError
from antiphon.pipeline.checks import check_counts, check_timeout, count_bytes
from antiphon.pipeline.suggest import did_you_mean
from antiphon.pipeline.topology import Edge, StageKind, Topology
from antiphon.pipeline.values import is_target, scalar_type

Device = Literal["auto", "cpu", "cuda"]
Mode = Literal["full", "stream"]
OnFailure = Literal["fail", "recompute"]
CONNECTORS = ("auto", "inproc", "shm")
ALL_STAGES = "*"  # the key in `models` for the stages that it does not name

# vLLM arguments that have a field of their own, or that Antiphon sets itself.
OWN_FIELD = {
    "dtype": "dtype",
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "kv_cache_memory_bytes": "kv_cache_bytes",
    "async_scheduling": "async_scheduling",
    "seed": "seed",
}
RESERVED = frozenset({"model", "scheduler_cls", "worker_cls", "additional_config"})


class StageDeployment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How one stage runs. Raises DeploymentError, starting with the field's name."""

    device: Device = "auto"
    """Where the stage computes; auto is cuda where there is one and vLLM is built for it."""

    dtype: str | None = None
    """Type of weights and activations as vLLM names it: float32, bfloat16, float16, auto."""

    max_model_len: int | None = None
    """Longest request in tokens, prompt and answer together; None is the checkpoint's own limit."""

    max_num_seqs: int | None = None
    """Most requests in one step."""

    max_num_batched_tokens: int | None = None
    """Most tokens in one step."""

    kv_cache_bytes: int | str | None = None
    """Memory for the KV cache: bytes, or text such as 64MiB."""

    threads: int | None = None
    """CPU threads that the stage computes with."""

    input_wait_timeout_s: float | None = None
    """Seconds that a request may wait for its stage input without progress; 0 waits for ever.

    None takes ANTIPHON_INPUT_WAIT_TIMEOUT_S, and 600 without it.
    """

    async_scheduling: bool | None = None
    """Schedule the next step while the device computes; CUDA and ar stages only."""

    active_streams: int | None = None
    """Streams that are served at a time; generation stages only. 0, the default: all that fit."""

    seed: int | None = None
    """Seed of the stage's sampling."""

    engine_args: dict[str, Any] = {}
    """Further vLLM EngineArgs, by vLLM's names."""

    def __post_init__(self) -> None:
        check_counts(self, "max_model_len", "max_num_seqs", "max_num_batched_tokens", "threads")
        if self.active_streams is not None and self.active_streams < 0:
            raise DeploymentError(
                f"active_streams: {self.active_streams} is negative; give 0 for all that fit"
            )
        check_timeout("input_wait_timeout_s", self.input_wait_timeout_s)
        count_bytes(self, "kv_cache_bytes")
        for name in self.engine_args:
            if name in RESERVED:
                raise DeploymentError(f"engine_args.{name}: Antiphon sets this itself; remove it")
            if name in OWN_FIELD:
                raise DeploymentError(
                    f"engine_args.{name}: this has a key of its own; set {OWN_FIELD[name]} beside"
                    " engine_args"
                )


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


class Deployment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a pipeline runs. Raises DeploymentError, starting with the field's name."""

    pipeline: str | None = None
    """Name of the pipeline that this deployment is for.

    None is the one that the caller chooses, and voice where nobody does.
    """

    connector: str = "auto"
    """What moves payloads: inproc within one process, shm (shared memory) between processes.

    auto chooses between the two. A class of another package is named as package.module:Class.
    """

    connector_bytes: int | str = "256MiB"
    """Most bytes that a stage may have stored and nobody has taken: bytes, or text such as 256MiB.

    Each stage's connector has this bound of its own. Within it is what it keeps to write large
    payloads to again, which gives way to what is to be stored. A KV cache must fit.
    """

    start_timeout_s: float = 600.0
    """Seconds that the stages may take to start once their models are there; 0 waits for ever."""

    in_process: bool = False
    """Run all stages in the caller's process instead of one process each."""

    log_level: LogLevel | None = None
    """What the stages' processes write on stderr; at error nothing, its reason is in the error.

    None takes ANTIPHON_LOG_LEVEL, and error without it. Stages in the caller's process follow
    vLLM's own settings.
    """

    metrics: bool = False
    """Keep vLLM's own metrics in each stage; `antiphon serve` does, for /metrics."""

    models: dict[str, str] = {}
    """Checkpoint per stage, in place of the topology's: a folder, or a Hugging Face repository.

    The key "*" is for all stages that have none of their own; in a file, a text instead of keys and
    values is the same. A repository is written as owner/name, and fetched into Hugging Face's cache
    folder if no folder has that name.
    """

    stages: dict[str, StageDeployment] = {}
    """Settings per stage, by the stage's name in the topology."""

    edges: dict[str, EdgeDeployment] = {}
    """Settings per edge, by the edge's name in the topology."""

    def __post_init__(self) -> None:
        for name, model in self.models.items():
            if not model.strip():
                raise DeploymentError(f"models.{name}: names nothing; give a folder, or remove it")
        count_bytes(self, "connector_bytes")
        check_timeout("start_timeout_s", self.start_timeout_s)
        if self.connector not in CONNECTORS and not is_target(self.connector):
            raise DeploymentError(
                f"connector: {self.connector!r} is neither a connector nor a class written as"
                f" package.module:Class{did_you_mean(self.connector, CONNECTORS)}"
            )
        if self.in_process and self.connector == "shm":
            raise DeploymentError("connector: shm is for stages in processes; use inproc or auto")
        if not self.in_process and self.connector == "inproc":
            raise DeploymentError("connector: inproc needs in_process: true; use shm or auto")

    def model_of(self, stage: str) -> str | None:
        """The checkpoint that is given for a stage; None leaves it to the topology."""
        return self.models.get(stage, self.models.get(ALL_STAGES))

    def with_models(self, given: str | Path | Mapping[str, str | Path]) -> Deployment:
        """The same with other checkpoints: for all stages, or for those that are named."""
        if isinstance(given, Mapping):
            models = {stage: str(model) for stage, model in given.items()}
        else:
            models = {ALL_STAGES: str(given)}
        kept = {} if ALL_STAGES in models else self.models
        return msgspec.structs.replace(self, models={**kept, **models})

    def check_names(self, topology: Topology) -> None:
        """Raise DeploymentError if this is for another pipeline, or names what it lacks."""
        if self.pipeline not in (None, topology.name):
            raise DeploymentError(
                f"pipeline: this deployment is for {self.pipeline}, not for {topology.name};"
                " correct one of the two"
            )
        edges = tuple(edge.name for edge in topology.edges)
        models = tuple(name for name in self.models if name != ALL_STAGES)
        for key, what, given, known in (
            ("stages", "stage", tuple(self.stages), topology.stage_names),
            ("edges", "edge", tuple(self.edges), edges),
            ("models", "stage", models, topology.stage_names),
        ):
            for name in given:
                if name not in known:
                    raise DeploymentError(
                        f"{key}.{name}: pipeline {topology.name} has no such {what}"
                        f"{did_you_mean(name, known)}"
                    )
