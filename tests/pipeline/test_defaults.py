"""Filling a deployment: who wins, what the device decides, and the printed form."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from antiphon.core.budget import EdgeLimits
from antiphon.errors import DeploymentError, SettingError, UnknownPipelineError
from antiphon.pipeline.defaults import chosen_pipeline, fill_defaults
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.deployment_file import load_deployment
from antiphon.pipeline.edge_deployment import EdgeDeployment
from antiphon.pipeline.printing import config_yaml
from antiphon.pipeline.registry import BUILT_IN, load_pipeline
from antiphon.pipeline.stage_deployment import StageDeployment
from antiphon.pipeline.topology import Topology
from sample_pipeline import TOPOLOGY

VARIABLE = "ANTIPHON_INPUT_WAIT_TIMEOUT_S"


def sample(**stages: StageDeployment) -> Deployment:
    return Deployment(pipeline="sample", stages=stages)


def test_small_defaults_on_a_cpu() -> None:
    talker = fill_defaults(TOPOLOGY, sample(), device="cpu").stages["talker"]
    assert (talker.device, talker.threads, talker.kv_cache_bytes) == ("cpu", 1, 64 << 20)


def test_topology_goes_before_the_default() -> None:
    thinker = fill_defaults(TOPOLOGY, sample(), device="cpu").stages["thinker"]
    assert (thinker.dtype, thinker.max_model_len) == ("bfloat16", 1024)
    assert thinker.engine_args == {"hf_overrides": {"depth": 2}}


def test_deployment_goes_before_the_topology() -> None:
    given = StageDeployment(max_model_len=256, engine_args={"hf_overrides": {}})
    thinker = fill_defaults(TOPOLOGY, sample(thinker=given), device="cpu").stages["thinker"]
    assert thinker.max_model_len == 256
    assert thinker.engine_args == {"hf_overrides": {}}


def test_timeout_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "30")
    filled = fill_defaults(
        TOPOLOGY, sample(talker=StageDeployment(input_wait_timeout_s=5)), device="cpu"
    )
    assert filled.stages["talker"].input_wait_timeout_s == 5
    assert filled.stages["code2wav"].input_wait_timeout_s == 30


def test_wrong_timeout_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "-1")
    with pytest.raises(SettingError, match=VARIABLE):
        fill_defaults(TOPOLOGY, sample(), device="cpu")


def test_log_level_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fill_defaults(TOPOLOGY, sample(), device="cpu").log_level == "error"
    monkeypatch.setenv("ANTIPHON_LOG_LEVEL", "info")
    assert fill_defaults(TOPOLOGY, sample(), device="cpu").log_level == "info"
    given = Deployment(pipeline="sample", log_level="warning")
    assert fill_defaults(TOPOLOGY, given, device="cpu").log_level == "warning"


@pytest.mark.parametrize(("in_process", "kind"), [(False, "shm"), (True, "inproc")])
def test_connector_follows_the_processes(in_process: bool, kind: str) -> None:
    given = Deployment(pipeline="sample", in_process=in_process)
    assert fill_defaults(TOPOLOGY, given, device="cpu").connector == kind


def test_steps_overlap_on_cuda_in_ar_stages_only() -> None:
    stages = fill_defaults(TOPOLOGY, sample(), device="cuda").stages
    assert {name: s.async_scheduling for name, s in stages.items()} == {
        "thinker": True,
        "talker": True,
        "code2wav": False,
    }


def test_overlap_cannot_be_asked_of_a_cpu() -> None:
    given = sample(talker=StageDeployment(device="cpu", async_scheduling=True))
    with pytest.raises(DeploymentError, match=r"stages\.talker\.async_scheduling: .* on cpu"):
        fill_defaults(TOPOLOGY, given, device="cuda")


def test_edges_are_filled_completely() -> None:
    filled = fill_defaults(TOPOLOGY, sample(), device="cpu").edges
    limits = msgspec.structs.asdict(EdgeLimits())
    assert filled == {
        "speech": EdgeDeployment(mode="full", **limits),
        "codes": EdgeDeployment(mode="full", options={"first": 256}, **limits),
    }


def test_edge_of_the_deployment_goes_first() -> None:
    codes = EdgeDeployment(mode="stream", request_chunks=3, options={"first": 64})
    given = Deployment(pipeline="sample", edges={"codes": codes})
    filled = fill_defaults(TOPOLOGY, given, device="cpu").edges
    assert (filled["codes"].mode, filled["speech"].mode) == ("stream", "full")
    assert (filled["codes"].request_chunks, filled["codes"].total_chunks) == (3, 1024)
    assert filled["codes"].options == {"first": 64}


def test_unknown_edge() -> None:
    given = Deployment(pipeline="sample", edges={"codec": EdgeDeployment()})
    with pytest.raises(DeploymentError, match=r"^edges\.codec: .*did you mean codes\?"):
        fill_defaults(TOPOLOGY, given, device="cpu")


def test_active_streams_are_all_that_fit() -> None:
    assert fill_defaults(TOPOLOGY, sample(), device="cpu").stages["code2wav"].active_streams == 0
    given = sample(code2wav=StageDeployment(active_streams=4))
    assert fill_defaults(TOPOLOGY, given, device="cpu").stages["code2wav"].active_streams == 4


def test_active_streams_cannot_be_asked_of_an_ar_stage() -> None:
    given = sample(talker=StageDeployment(active_streams=4))
    with pytest.raises(DeploymentError, match=r"^stages\.talker\.active_streams: .* ar stage"):
        fill_defaults(TOPOLOGY, given, device="cpu")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_filling_twice_changes_nothing(device: str) -> None:
    edges = {"codes": EdgeDeployment(mode="stream", total_bytes="1MiB", options={"first": 64})}
    given = Deployment(pipeline="sample", edges=edges)
    once = fill_defaults(TOPOLOGY, given, device=device)  # type: ignore[arg-type]
    assert fill_defaults(TOPOLOGY, once, device="cpu") == once


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", [*BUILT_IN, "sample"])
def test_printed_deployment_is_a_deployment_file(name: str, device: str, tmp_path: Path) -> None:
    """It is the same after loading, and after filling it again."""
    topology = TOPOLOGY if name == "sample" else load_pipeline(name)
    given = Deployment(models={"*": "/m: x", topology.stages[0].name: "owner/name"})
    filled = fill_defaults(topology, given, device=device)  # type: ignore[arg-type]
    (tmp_path / "d.yaml").write_text(config_yaml(filled))
    loaded = load_deployment(tmp_path / "d.yaml")
    assert loaded == filled
    assert fill_defaults(topology, loaded) == filled


def test_filled_deployment_is_for_its_pipeline() -> None:
    assert fill_defaults(TOPOLOGY, Deployment()).pipeline == "sample"


@pytest.mark.parametrize(
    ("given", "of_the_deployment", "chosen"),
    [
        (None, None, "voice"),
        (None, "imagine", "imagine"),
        ("split", None, "split"),
        (TOPOLOGY, None, "sample"),
    ],
)
def test_whose_pipeline_is_chosen(
    given: str | Topology | None, of_the_deployment: str | None, chosen: str
) -> None:
    deployment = Deployment(pipeline=of_the_deployment)
    assert chosen_pipeline(given, deployment).name == chosen


@pytest.mark.parametrize("given", ["", "voise"])
def test_pipeline_that_is_not_there(given: str) -> None:
    with pytest.raises(UnknownPipelineError):
        chosen_pipeline(given, Deployment(pipeline="voice"))
