"""Pipelines by name, the built-in ones and those of other packages."""

from __future__ import annotations

from pathlib import Path

import pytest

import sample_pipeline
from antiphon.errors import DeploymentError, TopologyError, UnknownPipelineError
from antiphon.pipeline.registry import BUILT_IN, load_pipeline, pipeline_targets


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for installed packages that Python looks into."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_registered_pipeline_is_loaded(installed: Path) -> None:
    sample_pipeline.install(installed, {"sample": "sample_pipeline:TOPOLOGY"})
    assert load_pipeline("sample") is sample_pipeline.TOPOLOGY
    assert set(pipeline_targets()) == {*BUILT_IN, "sample"}


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_pipelines_are_there(name: str) -> None:
    assert load_pipeline(name).name == name


def test_unknown_name_gets_the_nearest_and_the_list() -> None:
    with pytest.raises(UnknownPipelineError, match=r"'voise'; did you mean voice\?.*, voice\)"):
        load_pipeline("voise")


def test_name_that_is_near_nothing_gets_the_list() -> None:
    with pytest.raises(UnknownPipelineError, match=r"'zzz'; known: .*voice$"):
        load_pipeline("zzz")


def test_two_packages_with_one_name(installed: Path) -> None:
    sample_pipeline.install(installed, {"voice": "sample_pipeline:TOPOLOGY"})
    with pytest.raises(DeploymentError, match="voice is registered twice"):
        pipeline_targets()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_module:TOPOLOGY", "cannot be imported from no_such_module"),
        ("sample_pipeline:NOTHING", "sample_pipeline has no 'NOTHING'"),
        ("sample_pipeline:MODEL", "is a str; register a Topology"),
    ],
)
def test_wrong_registration(installed: Path, target: str, message: str) -> None:
    sample_pipeline.install(installed, {"broken": target})
    with pytest.raises(TopologyError, match=message):
        load_pipeline("broken")
