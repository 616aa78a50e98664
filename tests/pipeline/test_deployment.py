"""Deployment files: every mistake is named by its key's path."""

from __future__ import annotations

import ast
import inspect
import os
from pathlib import Path
from typing import Any

import msgspec
import msgspec.yaml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import DeploymentError
from antiphon.pipeline import deployment as module
from antiphon.pipeline.deployment import (
    Deployment,
    StageDeployment,
    load_deployment,
    parse_bytes,
    parse_deployment,
)
from sample_pipeline import TOPOLOGY

WRONG = {
    "pipelin: voice": "pipelin: unknown key; did you mean pipeline?",
    "stages: {talker: {max_num_seq: 3}}": (
        "stages.talker.max_num_seq: unknown key; did you mean max_num_seqs?"
    ),
    "stages: {talker: {max_num_seqs: lots}}": "stages.talker.max_num_seqs: expected int | null",
    "stages: {talker: {max_num_seqs: true}}": "stages.talker.max_num_seqs: expected int | null",
    "stages: {talker: {max_num_seqs: 0}}": "stages.talker.max_num_seqs: 0 is not positive",
    "stages: {talker: {threads: -1}}": "stages.talker.threads: -1 is not positive",
    "stages: {talker: {device: gpu}}": "stages.talker.device: invalid enum value 'gpu'",
    "stages: {talker: {kv_cache_bytes: 64 MiBs}}": "stages.talker.kv_cache_bytes: '64 MiBs' is not",
    "stages: {talker: {kv_cache_bytes: 0}}": "stages.talker.kv_cache_bytes: 0 is not a size",
    "stages: {talker: {input_wait_timeout_s: -1}}": "stages.talker.input_wait_timeout_s is -1.0",
    "stages: {talker: {input_wait_timeout_s: .nan}}": "stages.talker.input_wait_timeout_s is nan",
    "stages: {talker: {input_wait_timeout_s: .inf}}": "stages.talker.input_wait_timeout_s is inf",
    "stages: {talker: {input_wait_timeout_s: soon}}": (
        "stages.talker.input_wait_timeout_s: expected float | null"
    ),
    "stages: {talker: {engine_args: {worker_cls: x}}}": (
        "stages.talker.engine_args.worker_cls: Antiphon sets this itself"
    ),
    "stages: {talker: {engine_args: {kv_cache_memory_bytes: 1}}}": (
        "stages.talker.engine_args.kv_cache_memory_bytes: this has a key of its own;"
        " set kv_cache_bytes"
    ),
    "stages: {talker: 3}": "stages.talker: expected keys and values, got int",
    "stages: [talker]": "stages: expected stage names, got list",
    "start_timeout_s: -5": "start_timeout_s is -5.0",
    "connector: tcp": "connector: invalid enum value 'tcp'",
    "connector: inproc": "connector: inproc needs in_process: true",
    "{connector: shm, in_process: true}": "connector: shm is for stages in processes",
    "connector_bytes: huge": "connector_bytes: 'huge' is not a size",
    "- pipeline": "expected keys and values, got list",
    "pipeline: [": "is not valid YAML",
}


@pytest.mark.parametrize("text", WRONG)
def test_mistake_is_named_with_its_path(text: str, tmp_path: Path) -> None:
    """The message starts with the file and the key, and is one line."""
    file = tmp_path / "deployment.yaml"
    file.write_text(text)
    with pytest.raises(DeploymentError) as caught:
        load_deployment(file)
    assert str(caught.value).startswith(f"{file}: {WRONG[text]}")
    assert "\n" not in str(caught.value)


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match=r"none.yaml: cannot be read: No such file"):
        load_deployment(tmp_path / "none.yaml")


def test_folder_instead_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match="cannot be read: Is a directory"):
        load_deployment(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file(tmp_path: Path) -> None:
    file = tmp_path / "closed.yaml"
    file.touch(mode=0)
    with pytest.raises(DeploymentError, match="cannot be read: Permission denied"):
        load_deployment(file)


def test_binary_file(tmp_path: Path) -> None:
    file = tmp_path / "binary.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DeploymentError, match="is not UTF-8"):
        load_deployment(file)


def test_empty_file_is_all_defaults(tmp_path: Path) -> None:
    file = tmp_path / "empty.yaml"
    file.write_text("# nothing\n")
    assert load_deployment(file) == Deployment()


def test_whole_file(tmp_path: Path) -> None:
    file = tmp_path / "full.yaml"
    file.write_text(
        "pipeline: sample\nconnector: shm\nstages:\n  talker:\n    kv_cache_bytes: 32MiB\n"
        "    input_wait_timeout_s: 0\n    engine_args: {enable_prefix_caching: false}\n"
    )
    talker = StageDeployment(
        kv_cache_bytes=32 << 20,
        input_wait_timeout_s=0.0,
        engine_args={"enable_prefix_caching": False},
    )
    assert load_deployment(file) == Deployment(
        pipeline="sample", connector="shm", stages={"talker": talker}
    )


def test_unknown_stage_gets_the_nearest() -> None:
    given = Deployment(pipeline="sample", stages={"taker": StageDeployment()})
    with pytest.raises(DeploymentError, match=r"stages\.taker: .*; did you mean talker\?"):
        given.check_stages(TOPOLOGY)


def test_deployment_for_another_pipeline() -> None:
    with pytest.raises(DeploymentError, match="is for voice, not for sample"):
        Deployment().check_stages(TOPOLOGY)


@pytest.mark.parametrize(
    ("text", "count"),
    [("1", 1), ("64MiB", 64 << 20), ("64 mib", 64 << 20), ("2GB", 2 * 10**9), ("0.5KiB", 512)],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


KEYS = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=24)
FIELDS = [f.name for s in (Deployment, StageDeployment) for f in msgspec.structs.fields(s)]
NAMES = st.sampled_from(FIELDS) | KEYS
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)


@given(
    st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner))
)
def test_any_yaml_gives_a_deployment_or_a_deployment_error(data: Any) -> None:
    """Nothing but a DeploymentError comes out, and what is accepted survives a round trip."""
    try:
        found = parse_deployment(data)
    except DeploymentError:
        return
    assert parse_deployment(msgspec.to_builtins(found)) == found


def stage_deployments() -> st.SearchStrategy[StageDeployment]:
    """Valid settings of a stage, each field set or not."""
    counts = st.none() | st.integers(1, 1 << 20)
    return st.builds(
        StageDeployment,
        device=st.sampled_from(["auto", "cpu", "cuda"]),
        dtype=st.none() | st.sampled_from(["float32", "bfloat16"]),
        max_model_len=counts,
        max_num_seqs=counts,
        max_num_batched_tokens=counts,
        kv_cache_bytes=counts | st.sampled_from(["64MiB", "1GiB"]),
        threads=counts,
        input_wait_timeout_s=st.none() | st.floats(0, 86400),
        seed=st.none() | st.integers(0, 1 << 31),
        engine_args=st.dictionaries(st.just("block_size"), st.integers(1, 64)),
    )


@given(st.dictionaries(KEYS, stage_deployments(), max_size=3))
def test_yaml_round_trip(stages: dict[str, StageDeployment]) -> None:
    before = Deployment(stages=stages)
    assert parse_deployment(msgspec.yaml.decode(msgspec.yaml.encode(before))) == before


@pytest.mark.parametrize("struct", [StageDeployment, Deployment])
def test_every_field_is_documented(struct: type) -> None:
    """A string stands behind each field, and a stage has at most twelve fields."""
    tree = ast.parse(inspect.getsource(module))
    body = next(
        node.body
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == struct.__name__
    )
    fields = [i for i, node in enumerate(body) if isinstance(node, ast.AnnAssign)]
    assert 0 < len(fields) <= 12
    for index in fields:
        after = body[index + 1]
        assert isinstance(after, ast.Expr)
        assert isinstance(after.value, ast.Constant)
