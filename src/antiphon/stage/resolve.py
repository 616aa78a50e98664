"""From topology and filled deployment to what each stage needs to start.

Imports neither vllm nor torch: classes are named, not imported, and the checkpoint's folder is the
one that the operator names, or comes from the topology's own `model` function.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from antiphon.core.options import ConnectorSpec, InEdge, OutEdge
from antiphon.core.targets import load_target
from antiphon.env import check_every_step
from antiphon.errors import ModelUnavailableError, TopologyError
from antiphon.models.headers import check_checkpoint
from antiphon.models.hub import named_folder
from antiphon.pipeline.audio import MAX_CLIPS
from antiphon.pipeline.deployed import deployed, edge_limits, kv_settings
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.stage_deployment import StageDeployment
from antiphon.pipeline.topology import Edge, EdgeMode, Stage, StageKind, Topology
from antiphon.pipeline.values import parse_bytes
from antiphon.pipeline.wanted import stages_wanted
from antiphon.stage.memory import require_memory
from antiphon.stage.spec import StageSpec

logger = logging.getLogger(__name__)

Progress = Callable[[str, str], None]  # (stage, what it is doing)

# One worker needs no process of its own. The qualified name, because vLLM turns the short one into
# a worker process on CPU.
_ONE_WORKER = "vllm.v1.executor.uniproc_executor.UniProcExecutor"

# (kind, async scheduling) → class, as vLLM wants it: "module.Class".
SCHEDULERS = {
    (StageKind.AR, False): "antiphon.sched.ar.ARScheduler",
    (StageKind.AR, True): "antiphon.sched.ar.AsyncARScheduler",
    (StageKind.GENERATION, False): "antiphon.sched.generation.GenerationScheduler",
}

# (device, kind) → class.
WORKERS = {
    ("cpu", StageKind.AR): "antiphon.worker.cpu.ARWorker",
    ("cpu", StageKind.GENERATION): "antiphon.worker.cpu.GenerationWorker",
    ("cuda", StageKind.AR): "antiphon.worker.cuda.ARWorker",
    ("cuda", StageKind.GENERATION): "antiphon.worker.cuda.GenerationWorker",
}


# Of stages that are given audio: upstream makes its processor of the checkpoint's tokenizer.
HEARING = {
    "skip_tokenizer_init": False,
    "limit_mm_per_prompt": {"audio": MAX_CLIPS, "image": 0, "video": 0},
    "mm_processor_cache_gb": 0.25,  # of host memory, twice; earlier turns come again
}


def resolve_stages(
    topology: Topology,
    deployment: Deployment,
    *,
    run: str,
    entries: Iterable[str] | None = None,
    modalities: Iterable[str] | None = None,
    inputs: Iterable[str] | None = None,
    on_progress: Progress | None = None,
) -> dict[str, StageSpec]:
    """Everything that each wanted stage needs to start, by name; gets the models if need be.

    `deployment` comes from `fill_defaults`, `run` is the random token of this run. Blocks while
    models are fetched. Raises ModelUnavailableError for a checkpoint that is not there or not what
    its stage wants, TopologyError if a topology's model function is not there or does not return a
    folder, and DeploymentError if the stages cannot fit the machine's memory.
    """
    topology = deployed(topology, deployment)
    stages = stages_wanted(topology, entries, modalities, inputs)
    names = {stage.name for stage in stages}
    connector = ConnectorSpec(deployment.connector, run, parse_bytes(deployment.connector_bytes))
    loaders = loading_stages(topology, stages, in_process=deployment.in_process)
    specs = {}
    if any(deployment.stages[stage.name].device == "cuda" for stage in stages):
        # Upstream would choose its v2 runner there; stage_environment decides for v1.
        logger.warning("stages run on vLLM's v1 model runner; v2 is not supported yet")
    for stage in stages:
        settings = deployment.stages[stage.name]
        edge = topology.edge_into(stage.name)
        given = [] if edge is None or edge.producer not in names else [edge]
        taken = [edge for edge in topology.edges_from(stage.name) if edge.consumer in names]
        specs[stage.name] = StageSpec(
            name=stage.name,
            kind=stage.kind,
            model=str(model_folder(stage, on_progress, deployment.model_of(stage.name))),
            hf_config=stage.config,
            prompt_adapter=stage.prompt_adapter,
            engine_args=engine_args(stage, settings, hears=topology.hears(stage.name)),
            connector=connector,
            inputs=tuple(_in_edge(edge) for edge in given),
            outputs=tuple(_out_edge(edge, topology, deployment) for edge in taken),
            input_wait_timeout_s=_filled(settings.input_wait_timeout_s),
            atomic_inputs=stage.atomic_inputs,
            preemption=stage.preemption,
            active_streams=_filled(settings.active_streams),
            metrics=deployment.metrics,
            check_every_step=check_every_step(),
            threads=_filled(settings.threads),
            log_level=_filled(deployment.log_level),
            environment=stage_environment(settings, _filled(deployment.log_level)),
            kv_connector=stage.name in loaders,
        )
    require_memory(topology, deployment, specs, on_progress)
    return specs


def loading_stages(
    topology: Topology, stages: Sequence[Stage], *, in_process: bool
) -> frozenset[str]:
    """The stages whose engine has our KV connector: ar stages that a KV cache is handed to.

    vLLM has one connector per process, which the first engine makes. So in one process either all
    engines are set up with it or none: one without would find a connector that it does not expect.
    Ours serves several stages, and leaves those alone that load nothing.
    """
    loading = {
        edge.consumer
        for edge in topology.edges_among(stages)
        if edge.kv is not None and topology.stage(edge.consumer).kind is StageKind.AR
    }
    everybody = {stage.name for stage in stages}
    return frozenset(everybody if in_process and loading else loading)


def _in_edge(edge: Edge) -> InEdge:
    """With `split` the consumer gets each chunk as the whole payload of a request of its own; with
    `join` the payloads of several requests are the chunks of its one.
    """
    stream = edge.join or (edge.mode is EdgeMode.STREAM and not edge.split)
    return InEdge(edge.name, edge.input_adapter, dict(edge.options), stream, kv=edge.kv is not None)


def _out_edge(edge: Edge, topology: Topology, deployment: Deployment) -> OutEdge:
    """A cache leaves in blocks for an engine that may have the same, else by position."""
    return OutEdge(
        edge.name,
        edge.output_adapter,
        dict(edge.options),
        stream=edge.mode is EdgeMode.STREAM,
        limits=edge_limits(deployment, edge),
        kv=edge.kv,
        kv_settings=kv_settings(deployment, edge.name),
        kv_blocks=edge.kv is not None and topology.stage(edge.consumer).kind is StageKind.AR,
    )


def model_folder(
    stage: Stage, on_progress: Progress | None = None, given: str | None = None
) -> Path:
    """The folder of the stage's checkpoint, fetched if need be: what the operator has `given`, else
    what the topology's function returns. Checked, if the stage says what it has to be.
    """

    def progress(phase: str, fraction: float | None = None) -> None:
        if on_progress is not None:
            share = "" if fraction is None else f" {fraction:.0%}"
            on_progress(stage.name, f"{phase}{share}")

    folder = _own_folder(stage, progress) if given is None else named_folder(given, progress)
    if stage.model_type is not None or stage.weights:
        check_checkpoint(folder, stage)
    return folder


def _own_folder(stage: Stage, progress: Callable[[str, float | None], None]) -> Path:
    """What the topology's function returns."""
    source = load_target(stage.model, f"model of stage {stage.name}")
    try:
        folder = source(progress)
    except ModelUnavailableError as error:
        raise ModelUnavailableError(f"stage {stage.name}: {error}") from error
    if not isinstance(folder, Path):
        raise TopologyError(
            f"{stage.model} returned a {type(folder).__name__} for stage {stage.name};"
            " it has to return the checkpoint's folder as a pathlib.Path"
        )
    return folder


def engine_args(stage: Stage, settings: StageDeployment, *, hears: bool = False) -> dict[str, Any]:
    """Keyword arguments of vLLM's EngineArgs, all but the model's path; plain data.

    `hears`: the stage is given audio.
    """
    overlap = _filled(settings.async_scheduling)
    args: dict[str, Any] = {
        "dtype": settings.dtype,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "kv_cache_memory_bytes": settings.kv_cache_bytes,
        "async_scheduling": overlap,
        "seed": settings.seed,
        "skip_tokenizer_init": True,  # stages are given token ids and return them
        "disable_log_stats": True,
        "enforce_eager": settings.device == "cpu",
    }
    if stage.kind is StageKind.GENERATION:
        args |= {"runner": "pooling", "enable_prefix_caching": False}
    if hears:
        args |= HEARING
    args |= settings.engine_args
    args |= {
        "scheduler_cls": SCHEDULERS[stage.kind, overlap],
        "worker_cls": WORKERS[settings.device, stage.kind],
    }
    if args.get("tensor_parallel_size", 1) == 1:
        args.setdefault("distributed_executor_backend", _ONE_WORKER)
    return args


def stage_environment(settings: StageDeployment, log_level: str) -> dict[str, str]:
    """What a stage's process needs in its environment; never written into the caller's own."""
    threads = str(settings.threads)
    environment = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",  # models are folders by now; nothing may look elsewhere
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "0",  # the workers extend the v1 runner
        "VLLM_LOGGING_LEVEL": log_level.upper(),
    }
    if settings.device == "cpu":
        # Automatic binding is decided per process and puts every stage on the first core.
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    return environment


T = TypeVar("T")


def _filled(value: T | None) -> T:
    if value is None:
        raise ValueError("the deployment is not resolved; pass it through fill_defaults first")
    return value
