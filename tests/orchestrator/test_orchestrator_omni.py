"""`AsyncOmni` and `Omni` before their stages run, and when these do not start."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from antiphon import AsyncOmni, Deployment, Omni, OmniRequest
from antiphon.errors import (
    DeploymentError,
    InvalidRequestError,
    ModelUnavailableError,
    ShutdownError,
)
from antiphon.pipeline.registry import load_pipeline
from sample_pipeline import TOPOLOGY

MISSING = replace(
    TOPOLOGY,
    stages=tuple(replace(stage, model="sample_pipeline:missing") for stage in TOPOLOGY.stages),
)


async def test_a_pipeline_that_does_not_run_says_so() -> None:
    omni = AsyncOmni(TOPOLOGY)
    with pytest.raises(ShutdownError, match="call start"):
        await omni.generate(OmniRequest(text="hi"))
    with pytest.raises(ShutdownError, match="call start"):
        await omni.inspect()
    with pytest.raises(InvalidRequestError, match="call prepare"):
        await omni.check(OmniRequest(text="hi"))
    with pytest.raises(ShutdownError, match="call start"):
        await omni.session().__aenter__()
    assert await omni.abort("mine") is False
    assert (omni.num_running, omni.stage_pids) == (0, {})
    await omni.close()  # harmless


@pytest.mark.parametrize("pipeline", [None, "imagine"])
def test_the_pipeline_of_a_deployment_file(pipeline: str | None, tmp_path: Path) -> None:
    file = tmp_path / "d.yaml"
    file.write_text("pipeline: imagine\nmodels: /m\n")
    omni = AsyncOmni(pipeline, deployment=file)
    assert (omni.topology.name, omni.deployment.models) == ("imagine", {"*": "/m"})


def test_a_deployment_file_of_another_pipeline(tmp_path: Path) -> None:
    file = tmp_path / "d.yaml"
    file.write_text("pipeline: imagine\n")
    with pytest.raises(DeploymentError, match="is for imagine, not for voice"):
        AsyncOmni("voice", deployment=file)


def test_nobody_names_a_pipeline() -> None:
    assert AsyncOmni().topology.name == "voice"
    assert AsyncOmni("split", deployment=Deployment()).deployment.pipeline == "split"


@pytest.mark.parametrize(
    ("pipeline", "entry", "message"),
    [
        ("qwen3-omni", "speech", "answers and does not speak texts as they are; use .* chat in"),
        ("qwen3-tts", "chat", "speaks texts as they are and answers none; use .* say in Python"),
    ],
)
def test_the_other_verb_is_named(pipeline: str, entry: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^pipeline {pipeline} {message}"):
        OmniRequest(entry=entry, text="hi").check(load_pipeline(pipeline))


def test_a_checkpoint_that_nobody_has_given() -> None:
    with pytest.raises(ModelUnavailableError, match=r"--model FOLDER, as model= in Python"):
        Omni("qwen3-tts")


async def test_a_start_that_failed_can_be_tried_again() -> None:
    omni = AsyncOmni(MISSING)
    for _ in range(2):
        with pytest.raises(ModelUnavailableError, match="not in the cache"):
            await omni.start()
    await omni.close()


def test_a_start_that_failed_leaves_no_thread() -> None:
    with pytest.raises(ModelUnavailableError):
        Omni(MISSING)
    assert "antiphon" not in [thread.name for thread in threading.enumerate()]
