"""Deployment files: a text is a deployment, or DeploymentError says why not, within bounds."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import DeploymentError
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.deployment_file import (
    MAX_DEPTH,
    MAX_FILE_BYTES,
    MAX_VALUES,
    load_deployment,
    parse_deployment,
)
from antiphon.pipeline.edge_deployment import EdgeDeployment
from antiphon.pipeline.printing import config_yaml
from antiphon.pipeline.stage_deployment import StageDeployment
from antiphon.pipeline.supervision import Supervision
from fuzzing import bounded, campaign, damaged, seeds
from sample_pipeline import TOPOLOGY

SEEDS = seeds("deployment")
STRUCTS = (Deployment, StageDeployment, EdgeDeployment, Supervision)
KEYS = sorted({field.name for struct in STRUCTS for field in msgspec.structs.fields(struct)})


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fuzz") / "deployment.yaml"
    path.write_bytes(SEEDS[0])
    load_deployment(path)  # modules that are imported late are there
    return path


def check(file: Path, content: bytes) -> None:
    """It is refused, or it can be printed, sent and held against a pipeline."""
    file.write_bytes(content)
    try:
        with bounded(len(content)):
            found = load_deployment(file)
            found.check_names(TOPOLOGY)
            for edge in TOPOLOGY.edges:
                found.edges.get(edge.name, EdgeDeployment()).check_edge(TOPOLOGY, edge)
    except DeploymentError:
        return
    with bounded(len(content)):
        msgspec.msgpack.encode(found)
        assert parse_deployment(msgspec.to_builtins(found)) == found or _has_nan(found)
        assert config_yaml(found)


def _has_nan(found: Deployment) -> bool:
    """Then it does not equal itself."""
    return "nan" in repr(found)


@campaign(10)
@given(content=damaged(SEEDS, most=6))
def test_damaged_files(file: Path, content: bytes) -> None:
    check(file, content)


# fmt: off
PIECES = st.sampled_from([
    *KEYS, "thinker", "talker", "codes", "\n", "\n  ", "\n    ", "\n", ": ", ": ", ": ", "- ",
    "{", "}", "[", "]", ", ", "? ", "| \n", "> \n", "'", '"', "# ", "---\n", "...\n", "%YAML 9.9\n",
    "&a ", "*a", "&b ", "*b", "<<: *a", "<<: ", "!!python/object/apply:os.system ", "!!binary ",
    "!!set ", "!!omap ", "!!timestamp ", "!!int ", "!!float ", "!own ", "null", "~", "true", "0x_",
    "0b_", "1:59:59", "1:" * 60, "-1", "0", "1", ".nan", ".inf", "-.inf", "1e999", "9" * 30,
    "9" * 5000, "2001-13-99", "2001-01-01", "2001-01-01 00:00:00 +99:99", "64MiB", "9e9TiB", "auto",
    "cpu", "float32", "stream", "package.module:Class", "\u2028", "\ufeff", "\0", "\x85", "\\ud800",
    "\U0001f600", "\t", "[" * 500, "a: " * 50,
])
# fmt: on


@campaign(10)
@given(text=st.lists(PIECES, max_size=30).map("".join))
def test_files_of_any_pieces(file: Path, text: str) -> None:
    check(file, text.encode())


PLACES = (
    "{laughs}",
    "pipeline: {laughs}",
    "models: {laughs}",
    "stages: {laughs}",
    "stages: {{thinker: {laughs}}}",
    "stages: {{thinker: {{engine_args: {{a: {laughs}}}}}}}",
    "edges: {{codes: {{options: {{first: {laughs}}}}}}}",
    "supervision: {laughs}",
    "replicas: {{? {laughs} : 1}}",
)


@campaign()
@given(
    place=st.sampled_from(PLACES),
    maps=st.booleans(),
    width=st.integers(0, 40),
    levels=st.integers(1, 40),
)
def test_aliases_of_aliases(file: Path, place: str, maps: bool, width: int, levels: int) -> None:
    """A billion laughs: a few hundred letters stand for more values than there are atoms."""
    value = "x"
    for level in range(levels):
        again = [f"*n{level}"] * (width - 1)
        if maps:
            pairs = [f"k: &n{level} {value}", *(f"k{i}: {one}" for i, one in enumerate(again))]
            value = f"{{{', '.join(pairs)}}}"
        else:
            value = f"[{', '.join([f'&n{level} {value}', *again])}]"
    check(file, place.format(laughs=value).encode())


def test_what_is_just_small_enough() -> None:
    """Otherwise the bounds above would prove nothing."""
    deep: object = 1
    for _ in range(MAX_DEPTH - 4):
        deep = [deep]
    wide = list(range(MAX_VALUES - 200))
    args = {"stages": {"thinker": {"engine_args": {"a": deep, "b": wide}}}}
    parse_deployment(args)
    for more in ({"c": wide}, {"c": [[deep]], "d": [[[[[deep]]]]]}):
        with pytest.raises(DeploymentError, match="more than"):
            parse_deployment({"stages": {"thinker": {"engine_args": more | {"b": wide}}}})


def test_a_file_without_end() -> None:
    with bounded(MAX_FILE_BYTES), pytest.raises(DeploymentError, match="larger than 1048576 bytes"):
        load_deployment("/dev/zero")
