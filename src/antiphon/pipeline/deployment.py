"""The deployment: how an operator runs a pipeline on a machine. Frozen, typed, all of it optional.

What is None here is decided by `antiphon.pipeline.defaults`, which takes the topology's word first
and a default that suits the device after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from antiphon.env import LogLevel
from antiphon.errors import DeploymentError
from antiphon.pipeline.checks import check_timeout, count_bytes
from antiphon.pipeline.edge_deployment import EdgeDeployment
from antiphon.pipeline.stage_deployment import StageDeployment
from antiphon.pipeline.suggest import did_you_mean
from antiphon.pipeline.supervision import Supervision
from antiphon.pipeline.topology import Topology
from antiphon.pipeline.values import is_target

CONNECTORS = ("auto", "inproc", "shm")
ALL_STAGES = "*"  # the key in `models` for the stages that it does not name


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

    replicas: dict[str, int] = {}
    """Copies per stage, each in a process of its own, 1 where nothing is said.

    A request stays with one of them, of those that serve the one with the fewest requests.
    """

    edges: dict[str, EdgeDeployment] = {}
    """Settings per edge, by the edge's name in the topology."""

    supervision: Supervision = Supervision()
    """When the processes of stages are ended and started again."""

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
        for name, count in self.replicas.items():
            if count < 1:
                raise DeploymentError(f"replicas.{name}: {count} is not positive; give at least 1")
            if self.in_process and count > 1:
                raise DeploymentError(
                    f"replicas.{name}: stages in the caller's process have one replica each; remove"
                    " it, or in_process"
                )
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
            ("replicas", "stage", tuple(self.replicas), topology.stage_names),
        ):
            for name in given:
                if name not in known:
                    raise DeploymentError(
                        f"{key}.{name}: pipeline {topology.name} has no such {what}"
                        f"{did_you_mean(name, known)}"
                    )
