"""Deployment files: every mistake is named by its key's path."""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import msgspec.yaml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.budget import EdgeLimits
from antiphon.errors import DeploymentError
from antiphon.pipeline import docs
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.deployment_file import load_deployment, parse_deployment
from antiphon.pipeline.edge_deployment import EdgeDeployment
from antiphon.pipeline.stage_deployment import StageDeployment
from antiphon.pipeline.supervision import Supervision
from antiphon.pipeline.values import parse_bytes
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
    "stages: {talker: {active_streams: -1}}": "stages.talker.active_streams: -1 is negative",
    "edges: {codes: {mod: full}}": "edges.codes.mod: unknown key; did you mean mode?",
    "edges: {codes: {mode: chunks}}": "edges.codes.mode: invalid enum value 'chunks'",
    "edges: {codes: {request_chunks: 0}}": "edges.codes.request_chunks: 0 is not positive",
    "edges: {codes: {total_chunks: many}}": "edges.codes.total_chunks: expected int | null",
    "edges: {codes: {request_bytes: 1 MiBs}}": "edges.codes.request_bytes: '1 MiBs' is not a size",
    "edges: {codes: {total_bytes: 0}}": "edges.codes.total_bytes: 0 is not a size",
    "edges: {codes: {options: {first: [1]}}}": "edges.codes.options: expected",
    "edges: {codes: stream}": "edges.codes: expected keys and values, got str",
    "edges: codes": "edges: expected edge names, got str",
    "models: 3": "models: expected object",
    "models: {talker: 3}": "models: expected str",
    "models: {talker: ' '}": "models.talker: names nothing; give a folder",
    "models: ''": "models.*: names nothing; give a folder",
    "connector: tcp": "connector: 'tcp' is neither a connector nor a class",
    "connector: shn": (
        "connector: 'shn' is neither a connector nor a class written as package.module:Class;"
        " did you mean shm?"
    ),
    "connector: 'package.module:'": "connector: 'package.module:' is neither",
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
        "edges:\n  codes:\n    mode: stream\n    request_bytes: 1MiB\n    options: {first: 64}\n"
    )
    talker = StageDeployment(
        kv_cache_bytes=32 << 20,
        input_wait_timeout_s=0.0,
        engine_args={"enable_prefix_caching": False},
    )
    codes = EdgeDeployment(mode="stream", request_bytes=1 << 20, options={"first": 64})
    assert load_deployment(file) == Deployment(
        pipeline="sample", connector="shm", stages={"talker": talker}, edges={"codes": codes}
    )


@pytest.mark.parametrize("in_process", [False, True])
def test_connector_of_another_package(in_process: bool) -> None:
    found = parse_deployment({"connector": "my_package.store:Store", "in_process": in_process})
    assert found.connector == "my_package.store:Store"


def test_unknown_stage_gets_the_nearest() -> None:
    given = Deployment(pipeline="sample", stages={"taker": StageDeployment()})
    with pytest.raises(DeploymentError, match=r"stages\.taker: .*; did you mean talker\?"):
        given.check_names(TOPOLOGY)


def test_unknown_edge_gets_the_nearest() -> None:
    given = Deployment(pipeline="sample", edges={"code": EdgeDeployment()})
    with pytest.raises(DeploymentError, match=r"edges\.code: .*no such edge; did you mean codes\?"):
        given.check_names(TOPOLOGY)


def test_model_of_an_unknown_stage_gets_the_nearest() -> None:
    given = Deployment(pipeline="sample", models={"*": "/a", "taker": "/b"})
    with pytest.raises(DeploymentError, match=r"models\.taker: .*no such stage; did you mean talk"):
        given.check_names(TOPOLOGY)


def test_models_of_stages_and_of_all_others(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text("pipeline: sample\nmodels: {'*': /all, talker: org/talker}\n")
    found = load_deployment(file)
    found.check_names(TOPOLOGY)
    assert [found.model_of(name) for name in ("thinker", "talker")] == ["/all", "org/talker"]
    assert Deployment().model_of("thinker") is None


def test_a_text_is_the_model_of_all_stages() -> None:
    assert parse_deployment({"models": "/all"}) == Deployment(models={"*": "/all"})


@pytest.mark.parametrize(
    ("given", "models"),
    [
        ("/new", {"*": "/new"}),
        (Path("/new"), {"*": "/new"}),
        ({"*": "/new", "thinker": Path("/own")}, {"*": "/new", "thinker": "/own"}),
        ({"thinker": "/own"}, {"*": "/old", "talker": "/older", "thinker": "/own"}),
        ({"talker": "/own"}, {"*": "/old", "talker": "/own"}),
        ({}, {"*": "/old", "talker": "/older"}),
    ],
)
def test_models_given_later_win(given: Any, models: dict[str, str]) -> None:
    """One for all stages leaves none of the earlier ones."""
    before = Deployment(models={"*": "/old", "talker": "/older"})
    assert before.with_models(given).models == models


def test_deployment_for_another_pipeline() -> None:
    """That is what is told, and not that its stages are others."""
    given = Deployment(pipeline="voice", stages={"else": StageDeployment()})
    with pytest.raises(DeploymentError, match="is for voice, not for sample"):
        given.check_names(TOPOLOGY)


def test_deployment_for_any_pipeline() -> None:
    Deployment().check_names(TOPOLOGY)


@pytest.mark.parametrize(
    ("text", "count"),
    [("1", 1), ("64MiB", 64 << 20), ("64 mib", 64 << 20), ("2GB", 2 * 10**9), ("0.5KiB", 512)],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


def test_documented_limits_are_those_in_force() -> None:
    rows = docs.render().splitlines()
    for name, limit in msgspec.structs.asdict(EdgeLimits()).items():
        (row,) = [row for row in rows if row.startswith(f"| `{name}` |")]
        documented = re.search(r"None is (\w+)\.", row)
        assert documented, row
        assert parse_bytes(documented[1]) == limit


KEYS = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=24)
STRUCTS = (Deployment, StageDeployment, EdgeDeployment, Supervision)
FIELDS = [field.name for struct in STRUCTS for field in msgspec.structs.fields(struct)]
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
        active_streams=st.none() | st.integers(0, 1 << 10),
        seed=st.none() | st.integers(0, 1 << 31),
        engine_args=st.dictionaries(st.just("block_size"), st.integers(1, 64)),
    )


def edge_deployments() -> st.SearchStrategy[EdgeDeployment]:
    """Valid settings of an edge, each field set or not."""
    counts = st.none() | st.integers(1, 1 << 20)
    scalars = st.booleans() | st.integers(-9, 9) | st.floats(-1, 1) | st.sampled_from(["a", "1"])
    return st.builds(
        EdgeDeployment,
        mode=st.none() | st.sampled_from(["full", "stream"]),
        request_chunks=counts,
        request_bytes=counts | st.sampled_from(["64KiB", "1GiB"]),
        total_chunks=counts,
        total_bytes=counts | st.sampled_from(["64KiB", "1GiB"]),
        options=st.dictionaries(KEYS, scalars, max_size=3),
        on_failure=st.none() | st.sampled_from(["fail", "recompute"]),
        ack_timeout_s=st.none() | st.floats(0, 86400),
        lease_s=st.none() | st.floats(0, 86400),
        checksum=st.none() | st.booleans(),
    )


@given(
    st.dictionaries(KEYS, stage_deployments(), max_size=3),
    st.dictionaries(KEYS, edge_deployments(), max_size=3),
)
def test_yaml_round_trip(
    stages: dict[str, StageDeployment], edges: dict[str, EdgeDeployment]
) -> None:
    before = Deployment(stages=stages, edges=edges)
    assert parse_deployment(msgspec.yaml.decode(msgspec.yaml.encode(before))) == before


@pytest.mark.parametrize("struct", STRUCTS)
def test_every_field_is_documented(struct: type) -> None:
    """A string stands behind each field, and there are at most twelve."""
    tree = ast.parse(inspect.getsource(sys.modules[struct.__module__]))
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("replicas: {talker: 0}", "replicas.talker: 0 is not positive; give at least 1"),
        ("{in_process: true, replicas: {talker: 2}}", "replicas.talker: stages in the caller's"),
        ("supervision: {restarts: -1}", "supervision.restarts: -1 is negative; give 0 for never"),
        ("supervision: {backoff_s: -1}", "supervision.backoff_s"),
        ("supervision: {silence: 3}", "silence_s"),
        ("supervision: {window_s: 0}", "supervision.window_s: 0 is no time"),
    ],
)
def test_replicas_and_supervision_are_checked(text: str, message: str) -> None:
    with pytest.raises(DeploymentError) as failure:
        parse_deployment(msgspec.yaml.decode(text.encode()))
    assert message in str(failure.value)
