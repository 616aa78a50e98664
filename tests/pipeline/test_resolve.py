"""From topology and deployment to the specs that stages start from."""

from __future__ import annotations

import ast
import importlib.util
import os
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from antiphon.core.budget import EdgeLimits
from antiphon.errors import (
    DeploymentError,
    InvalidRequestError,
    ModelUnavailableError,
    TopologyError,
)
from antiphon.orchestrator.sampling import KNOWN
from antiphon.pipeline.defaults import fill_defaults
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.edge_deployment import EdgeDeployment
from antiphon.pipeline.stage_deployment import OWN_FIELD, Device, StageDeployment
from antiphon.pipeline.topology import EdgeMode, Preemption, Topology
from antiphon.stage.resolve import SCHEDULERS, WORKERS, model_folder, resolve_stages
from antiphon.stage.spec import StageSpec
from sample_pipeline import CODE2WAV, CODES, SPEECH, TALKER, THINKER, TOPOLOGY


def specs(device: Device = "cpu", **options: object) -> dict[str, StageSpec]:
    filled = fill_defaults(TOPOLOGY, Deployment(pipeline="sample"), device=device)
    return resolve_stages(TOPOLOGY, filled, run="r1", **options)  # type: ignore[arg-type]


def test_chain_of_edges() -> None:
    found = specs()
    assert list(found) == ["thinker", "talker", "code2wav"]
    assert [edge.name for edge in found["thinker"].outputs] == ["speech"]
    assert [edge.name for edge in found["talker"].inputs] == ["speech"]
    assert found["code2wav"].inputs[0].options == {"first": 256}
    assert found["thinker"].inputs == found["code2wav"].outputs == ()


def specs_of(topology: Topology, **settings: object) -> dict[str, StageSpec]:
    given = Deployment(pipeline="sample", **settings)  # type: ignore[arg-type]
    return resolve_stages(topology, fill_defaults(topology, given, device="cpu"), run="r1")


def test_full_edges_stream_at_neither_end() -> None:
    found = specs()
    assert not found["talker"].outputs[0].stream
    assert not found["code2wav"].inputs[0].stream


def test_stream_edge_streams_at_both_ends() -> None:
    edges = (SPEECH, replace(CODES, mode=EdgeMode.STREAM))
    found = specs_of(replace(TOPOLOGY, edges=edges))
    assert found["talker"].outputs[0].stream
    assert found["code2wav"].inputs[0].stream


def test_parts_of_a_stream_arrive_whole() -> None:
    """Each is the one payload of a consumer request of its own."""
    edges = (replace(SPEECH, mode=EdgeMode.STREAM), CODES)
    found = specs_of(replace(TOPOLOGY, edges=edges))
    assert found["thinker"].outputs[0].stream
    assert not found["talker"].inputs[0].stream


def test_edge_of_the_deployment_reaches_both_ends() -> None:
    given = EdgeDeployment(
        mode="stream", request_chunks=3, total_bytes="1MiB", options={"first": 8}
    )
    found = specs_of(TOPOLOGY, edges={"codes": given})
    out, into = found["talker"].outputs[0], found["code2wav"].inputs[0]
    assert out.limits == EdgeLimits(request_chunks=3, total_bytes=1 << 20)
    assert (out.stream, into.stream) == (True, True)
    assert out.options == into.options == {"first": 8}


def test_a_stage_is_told_what_becomes_of_its_requests_when_blocks_run_out() -> None:
    stages = (THINKER, replace(TALKER, preemption=Preemption.RESERVE), CODE2WAV)
    found = specs_of(replace(TOPOLOGY, stages=stages))
    policies = [found[name].preemption for name in ("thinker", "talker")]
    assert policies == [Preemption.RECOMPUTE, Preemption.RESERVE]


def test_active_streams_reach_the_stage() -> None:
    window = StageDeployment(active_streams=4)
    found = specs_of(TOPOLOGY, stages={"code2wav": window})
    assert found["code2wav"].active_streams == 4
    assert found["talker"].active_streams == 0


def test_entry_starts_only_its_stages() -> None:
    """A stage whose producer is not started has no incoming edge."""
    found = specs(entries=["speech"])
    assert list(found) == ["talker", "code2wav"]
    assert found["talker"].inputs == ()


def test_text_alone_starts_the_thinker_alone() -> None:
    found = specs(entries=["chat"], modalities=["text"])
    assert list(found) == ["thinker"]
    assert found["thinker"].outputs == ()


def test_unknown_entry() -> None:
    with pytest.raises(InvalidRequestError, match="did you mean speech"):
        specs(entries=["speach"])


def test_engine_arguments_on_a_cpu() -> None:
    args = specs()["thinker"].engine_args
    assert args["enforce_eager"] is True
    assert args["kv_cache_memory_bytes"] == 64 << 20
    assert args["max_model_len"] == 1024
    assert args["hf_overrides"] == {"depth": 2}
    assert args["scheduler_cls"] == "antiphon.sched.ar.ARScheduler"
    assert args["worker_cls"] == "antiphon.worker.cpu.ARWorker"
    assert args["distributed_executor_backend"].endswith(".UniProcExecutor")


def test_engine_arguments_on_cuda() -> None:
    args = specs("cuda")["thinker"].engine_args
    assert args["enforce_eager"] is False
    assert args["scheduler_cls"] == "antiphon.sched.ar.AsyncARScheduler"
    assert args["worker_cls"] == "antiphon.worker.cuda.ARWorker"


def test_generation_stage() -> None:
    spec = specs("cuda")["code2wav"]
    assert spec.engine_args["runner"] == "pooling"
    assert spec.engine_args["scheduler_cls"] == "antiphon.sched.generation.GenerationScheduler"
    assert spec.engine_args["worker_cls"] == "antiphon.worker.cuda.GenerationWorker"
    assert spec.atomic_inputs


def test_two_workers_leave_the_executor_to_vllm() -> None:
    settings = StageDeployment(engine_args={"tensor_parallel_size": 2})
    given = Deployment(pipeline="sample", stages={"thinker": settings})
    filled = fill_defaults(TOPOLOGY, given, device="cuda")
    found = resolve_stages(TOPOLOGY, filled, run="r1", entries=["chat"], modalities=["text"])
    assert "distributed_executor_backend" not in found["thinker"].engine_args


def test_a_stage_is_not_split_by_layers() -> None:
    settings = StageDeployment(engine_args={"pipeline_parallel_size": 2})
    given = Deployment(pipeline="sample", stages={"thinker": settings})
    with pytest.raises(DeploymentError, match=r"stages.thinker.engine_args.pipeline_parallel_size"):
        fill_defaults(TOPOLOGY, given, device="cuda")


def test_environment_goes_to_the_stage_and_not_to_the_caller() -> None:
    before = dict(os.environ)
    environment = specs()["talker"].environment
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert environment["VLLM_USE_V2_MODEL_RUNNER"] == "0"
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["VLLM_LOGGING_LEVEL"] == "ERROR"
    assert dict(os.environ) == before


def test_no_cpu_binding_on_cuda() -> None:
    assert "VLLM_CPU_OMP_THREADS_BIND" not in specs("cuda")["talker"].environment


def test_the_runner_version_is_forced_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert specs("cuda")["talker"].environment["VLLM_USE_V2_MODEL_RUNNER"] == "0"
    assert [r.levelname for r in caplog.records if "v1 model runner" in r.message] == ["WARNING"]
    caplog.clear()
    specs("cpu")  # upstream chooses v1 there by itself
    assert not caplog.records


def test_progress_names_the_stage() -> None:
    seen: list[tuple[str, str]] = []
    specs(entries=["speech"], on_progress=lambda stage, phase: seen.append((stage, phase)))
    assert seen[:2] == [("talker", "looking"), ("talker", "copying 50%")]


def test_model_that_the_operator_names(tmp_path: Path) -> None:
    """The topology's function is not asked then."""
    stages = tuple(replace(s, model="sample_pipeline:missing") for s in TOPOLOGY.stages)
    (tmp_path / "own").mkdir()
    models = {"*": str(tmp_path), "talker": str(tmp_path / "own")}
    found = specs_of(replace(TOPOLOGY, stages=stages), models=models)
    assert [spec.model for spec in found.values()] == [
        str(tmp_path),
        str(tmp_path / "own"),
        str(tmp_path),
    ]


@pytest.mark.parametrize("given", [True, False])
def test_checkpoint_is_what_the_stage_wants(tmp_path: Path, given: bool) -> None:
    """Whoever named the folder, and before anything starts."""
    stage = replace(THINKER, model_type="two_part")
    with pytest.raises(ModelUnavailableError, match="cannot serve stage thinker"):
        model_folder(stage, given=str(tmp_path) if given else None)
    (tmp_path / "config.json").write_text('{"model_type": "two_part"}')
    save_file({"a": np.zeros(1)}, tmp_path / "model.safetensors")
    assert model_folder(stage, given=str(tmp_path)) == tmp_path


def test_stage_that_makes_its_own_configuration() -> None:
    stages = (replace(THINKER, engine={}, config="sample:Config"), TALKER, CODE2WAV)
    found = specs_of(replace(TOPOLOGY, stages=stages))
    assert [found[name].hf_config for name in ("thinker", "talker")] == ["sample:Config", None]


def test_stage_that_makes_its_own_configuration_is_given_none() -> None:
    stages = (replace(THINKER, config="sample:Config"), TALKER, CODE2WAV)
    with pytest.raises(
        DeploymentError, match=r"stages\.thinker\.engine_args\.hf_overrides: sample"
    ):
        specs_of(replace(TOPOLOGY, stages=stages))


def test_missing_model() -> None:
    with pytest.raises(ModelUnavailableError, match="not in the cache"):
        model_folder(replace(TALKER, model="sample_pipeline:missing"))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("sample_pipeline:nothing", "model of stage thinker.*cannot be imported"),
        ("no_such_module:f", "model of stage thinker.*cannot be imported"),
        ("sample_pipeline:text_path", "returned a str for stage thinker"),
    ],
)
def test_wrong_model_function(target: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        model_folder(replace(THINKER, model=target))


def test_unfilled_deployment_is_refused() -> None:
    given = Deployment(
        pipeline="sample", stages={name: StageDeployment() for name in TOPOLOGY.stage_names}
    )
    with pytest.raises(ValueError, match="fill_defaults"):
        resolve_stages(TOPOLOGY, given, run="r1")


def test_spec_crosses_a_process_boundary() -> None:
    found = specs()["thinker"]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=StageSpec) == found


def declared_in_vllm(file: str, class_name: str) -> set[str]:
    """Names of the annotated attributes of a class, read from vLLM's source without import."""
    package = importlib.util.find_spec("vllm")
    assert package is not None
    assert package.origin is not None
    tree = ast.parse((Path(package.origin).parent / file).read_text())
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            return {
                item.target.id
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            }
    raise AssertionError(f"{class_name} is not in {file}")


def test_vllm_knows_every_engine_argument() -> None:
    used = {
        name for device in ("cpu", "cuda") for s in specs(device).values() for name in s.engine_args
    }
    known = declared_in_vllm("engine/arg_utils.py", "EngineArgs")
    assert used | set(OWN_FIELD) <= known


def test_vllm_knows_every_sampling_parameter() -> None:
    """But for those of frames, which are ours."""
    ours = {name for name in KNOWN if name.startswith("code_")}
    assert declared_in_vllm("sampling_params.py", "SamplingParams") >= KNOWN - ours


def test_named_classes_are_in_the_package() -> None:
    """The schedulers' and workers' names, found in the source without importing vllm."""
    root = importlib.util.find_spec("antiphon")
    assert root is not None
    assert root.origin is not None
    for name in {*SCHEDULERS.values(), *WORKERS.values()}:
        module, _, class_name = name.removeprefix("antiphon.").rpartition(".")
        file = Path(root.origin).parent.joinpath(*module.split(".")).with_suffix(".py")
        classes = [n.name for n in ast.parse(file.read_text()).body if isinstance(n, ast.ClassDef)]
        assert class_name in classes


@pytest.mark.parametrize(("value", "result"), [("1", True), ("0", False), ("", False)])
def test_stages_check_every_step_if_the_operator_wants_it(
    monkeypatch: pytest.MonkeyPatch, value: str, result: bool
) -> None:
    monkeypatch.setenv("ANTIPHON_CHECK_EVERY_STEP", value)
    assert {spec.check_every_step for spec in specs().values()} == {result}
