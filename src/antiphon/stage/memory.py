"""What each stage that is to start takes of memory; the sum has to fit the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from antiphon.models.headers import weight_bytes
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.memory_plan import StageMemory, available_bytes, check_memory
from antiphon.pipeline.topology import Topology
from antiphon.pipeline.values import parse_bytes
from antiphon.stage.spec import StageSpec


def plan_memory(
    topology: Topology, deployment: Deployment, specs: Mapping[str, StageSpec]
) -> list[StageMemory]:
    """The stages of `specs` as the filled deployment runs them."""
    plan = []
    for name, spec in specs.items():
        settings = deployment.stages[name]
        plan.append(
            StageMemory(
                name,
                settings.device,
                deployment.replicas[name],
                weight_bytes(spec.model, topology.stage(name).weights, _widest(settings.dtype)),
                0 if settings.kv_cache_bytes is None else parse_bytes(settings.kv_cache_bytes),
                spec.connector.max_bytes,
            )
        )
    return plan


def _widest(dtype: str | None) -> int:
    """Bytes of an element; vLLM's auto makes 16 bits of 32."""
    return 4 if dtype in ("float32", "float") else 2


def require_memory(
    topology: Topology,
    deployment: Deployment,
    specs: Mapping[str, StageSpec],
    on_progress: Callable[[str, str], None] | None = None,
) -> None:
    """Tell what each stage takes, and raise DeploymentError if it is more than there is."""
    plan = plan_memory(topology, deployment, specs)
    if on_progress is not None:
        for stage in plan:
            on_progress(stage.name, f"takes {stage}")
    check_memory(plan, available_bytes())
