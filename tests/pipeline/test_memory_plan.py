"""What a pipeline takes of memory is counted, told, and held against what there is."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from antiphon.errors import DeploymentError
from antiphon.models.headers import weight_bytes
from antiphon.pipeline.defaults import fill_defaults
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.memory_plan import StageMemory, available_bytes, check_memory, size_text
from antiphon.pipeline.stage_deployment import StageDeployment
from antiphon.stage.memory import plan_memory
from antiphon.stage.resolve import resolve_stages
from sample_pipeline import TOPOLOGY

MIB = 1 << 20


def stage(name: str = "a", *, device: str = "cpu", replicas: int = 1, kv: int = 64) -> StageMemory:
    return StageMemory(name, device, replicas, weights=100 * MIB, kv_cache=kv * MIB, payloads=MIB)


def test_more_than_there_is_is_refused_in_one_sentence() -> None:
    """C110: two stages that fit alone and not together."""
    plan = [stage("a"), stage("b", replicas=2)]
    with pytest.raises(DeploymentError) as caught:
        check_memory(plan, 491 * MIB)
    message = str(caught.value)
    assert "need 492 MiB of memory, and the machine has 491 MiB left" in message
    assert "a 100 MiB weights and 64 MiB KV cache on cpu" in message
    assert "b 2 times 100 MiB weights" in message
    assert "kv_cache_bytes" in message


def test_what_fits_to_the_byte_fits() -> None:
    check_memory([stage("a"), stage("b", replicas=2)], 492 * MIB)
    with pytest.raises(DeploymentError):
        check_memory([stage("a"), stage("b", replicas=2)], 492 * MIB - 1)


def test_payloads_alone_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check_memory([stage()], 165 * MIB)
        assert caplog.text == ""
        check_memory([stage()], 165 * MIB - 1)
    assert "connector_bytes" in caplog.text


def test_other_devices_and_unknown_machines_are_not_judged() -> None:
    check_memory([stage(device="cuda")], 10 * MIB)
    check_memory([stage()], None)


def test_the_container_s_limit_counts(tmp_path: Path) -> None:
    meminfo, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    meminfo.write_text("MemTotal:  9000 kB\nMemAvailable:    8000 kB\n")
    files = [limit, tmp_path / "absent"]
    assert available_bytes(meminfo, files) == 8000 << 10
    limit.write_text("max\n")
    assert available_bytes(meminfo, files) == 8000 << 10
    limit.write_text("1000000\n")
    assert available_bytes(meminfo, files) == 1_000_000
    assert available_bytes(tmp_path / "absent", files) is None
    assert available_bytes() is not None


def test_weights_are_counted_by_their_names(tmp_path: Path) -> None:
    weights = {"thinker.a": np.zeros(10, np.float32), "talker.b": np.zeros(3, np.float16)}
    save_file(weights, tmp_path / "model.safetensors")
    assert weight_bytes(tmp_path) == 46
    assert weight_bytes(tmp_path, ["talker."]) == 6
    assert weight_bytes(tmp_path, widest=1) < 46  # of wider elements one byte is loaded
    assert weight_bytes(tmp_path / "nowhere") == 0
    (tmp_path / "model.safetensors").write_bytes(b"cut off")
    assert weight_bytes(tmp_path) == 0


def _checkpoint(folder: Path) -> Path:
    save_file({"w": np.zeros(MIB, np.float32)}, folder / "model.safetensors")
    return folder


def test_every_stage_has_a_budget_of_its_own(tmp_path: Path) -> None:
    """C110: weights as they are loaded, cache and payloads, for each of its replicas."""
    given = Deployment(
        pipeline="sample",
        stages={"talker": StageDeployment(kv_cache_bytes="8MiB")},
        connector_bytes="2MiB",
        replicas={"talker": 2},
    ).with_models(_checkpoint(tmp_path))
    filled = fill_defaults(TOPOLOGY, given, device="cpu")
    told: list[tuple[str, str]] = []
    specs = resolve_stages(
        TOPOLOGY, filled, run="r1", on_progress=lambda name, text: told.append((name, text))
    )
    plan = {item.name: item for item in plan_memory(TOPOLOGY, filled, specs)}
    assert plan["talker"] == StageMemory("talker", "cpu", 2, 2 * MIB, 8 * MIB, 2 * MIB)
    assert plan["thinker"] == replace(plan["talker"], name="thinker", replicas=1, kv_cache=64 * MIB)
    assert ("talker", f"takes {plan['talker']}") in told


def test_a_pipeline_that_cannot_fit_is_refused_before_it_starts(tmp_path: Path) -> None:
    """C110."""
    large = StageDeployment(kv_cache_bytes=1 << 50)
    given = Deployment(pipeline="sample", stages={"thinker": large})
    filled = fill_defaults(TOPOLOGY, given.with_models(_checkpoint(tmp_path)), device="cpu")
    with pytest.raises(DeploymentError, match=r"thinker 2 MiB weights and 1048576\.0 GiB KV cache"):
        resolve_stages(TOPOLOGY, filled, run="r1")


@pytest.mark.parametrize(
    ("mib", "text"), [(0, "0 MiB"), (1, "1 MiB"), (1023, "1023 MiB"), (1024, "1.0 GiB")]
)
def test_sizes_read_well(mib: int, text: str) -> None:
    assert size_text(mib * MIB) == text
