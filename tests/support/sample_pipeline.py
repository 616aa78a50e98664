"""A pipeline in the shape of a voice assistant, for tests that need a topology and no models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from antiphon.errors import ModelUnavailableError
from antiphon.pipeline.topology import Edge, EdgeMode, Entry, Stage, StageKind, Topology

MODEL = "sample_pipeline:folder"
THINKER = Stage(
    "thinker",
    StageKind.AR,
    MODEL,
    output="text",
    engine={"dtype": "bfloat16", "max_model_len": 1024, "hf_overrides": {"depth": 2}},
    sampling={"max_tokens": 64},
)
TALKER = Stage("talker", StageKind.AR, MODEL)
CODE2WAV = Stage("code2wav", StageKind.GENERATION, MODEL, output="audio", atomic_inputs=True)
SPEECH = Edge(
    "speech", "thinker", "talker", EdgeMode.FULL, "sample:Sentences", "sample:Prompt", split=True
)
CODES = Edge(
    "codes",
    "talker",
    "code2wav",
    EdgeMode.FULL,
    "sample:Codes",
    "sample:Frames",
    options={"first": 256},
)
CHAT = Entry("chat", "thinker", "sample:Chat")
SAY = Entry("speech", "talker", "sample:Say")

TOPOLOGY = Topology(
    "sample",
    "a pipeline for tests",
    (THINKER, TALKER, CODE2WAV),
    (SPEECH, CODES),
    (CHAT, SAY),
)


def folder(progress: Callable[[str, float | None], None]) -> Path:
    """A checkpoint that is there."""
    progress("looking", None)
    progress("copying", 0.5)
    return Path("/models/sample")


def missing(progress: Callable[[str, float | None], None]) -> Path:
    """A checkpoint that cannot be had."""
    raise ModelUnavailableError("the sample's model is not in the cache")


def text_path(progress: Callable[[str, float | None], None]) -> str:
    """Breaks the contract: the folder's name and no path."""
    return "/models/sample"


def install(site: Path, points: dict[str, str]) -> None:
    """Make `site` a folder with a package that registers these pipelines."""
    info = site / "sample_pipeline-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sample-pipeline\nVersion: 1.0\n")
    lines = [f"{name} = {target}" for name, target in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[antiphon.pipelines]", *lines, ""]))
