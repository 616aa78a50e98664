"""No pickle between processes: neither in the source, nor when it is made unusable."""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from antiphon.connector.runs import RunLock, new_run_token
from antiphon.connector.shm import ShmConnector
from antiphon.payload.ref import Ref
from antiphon.payload.types import Payload, per_token
from antiphon.payload.wire import decode, encode
from antiphon.stage.messages import Deliver, Discard, Event, Failed, Step, Stop
from antiphon.stage.wire import Channel
from no_pickle import Watch
from own_process import report_of
from source import PACKAGE, trees

HERE = Path(__file__).parent


# --- in the source --------------------------------------------------------------------------------

SERIALISERS = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
ALLOWED = {("models/qwen2_5_omni/speakers.py", "pickle.UnpicklingError")}  # an error's class
# What would unpickle, or run, what it is given; `send` and `recv` are those of a Connection.
CALLS = {"recv", "recv_pyobj", "send_pyobj", "unsafe_load", "full_load"}
YAML = {"yaml.load", "yaml.load_all"}
WITH = {"torch.load": ("weights_only", True), "np.load": ("allow_pickle", False)}


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def constants(call: ast.Call) -> dict[str | None, object]:
    """The keyword arguments that are written out."""
    return {k.arg: k.value.value for k in call.keywords if isinstance(k.value, ast.Constant)}


def is_unsafe(call: ast.Call) -> bool:
    called = ast.unparse(call.func)
    owner, _, name = called.rpartition(".")
    given = constants(call)
    if called in WITH:
        keyword, wanted = WITH[called]
        return given.get(keyword) is not wanted
    if name in ("eval", "exec"):
        return not owner  # a module's own `eval()` sets its mode
    if name == "send":
        return "connection" in owner
    return name in CALLS or called in YAML or given.get("trust_remote_code") is True


def unsafe_calls(tree: ast.Module) -> list[str]:
    """Calls that must not be there, as they are written."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [ast.unparse(call) for call in calls if is_unsafe(call)]


def test_nothing_in_the_package_imports_what_unpickles() -> None:
    found = {
        (path.relative_to(PACKAGE).as_posix(), name)
        for path, tree in trees(PACKAGE)
        for name in imported(tree)
        if name.split(".")[0] in SERIALISERS
    }
    assert found == ALLOWED


def test_nothing_in_the_package_unpickles_or_runs_what_it_is_given() -> None:
    found = {path.name: unsafe_calls(tree) for path, tree in trees(PACKAGE)}
    assert {name: calls for name, calls in found.items() if calls} == {}


@pytest.mark.parametrize(
    "line",
    [
        "self._connection.send(x)",
        "connection.recv()",
        "torch.load(file)",
        "torch.load(file, weights_only=False)",
        "np.load(file, allow_pickle=True)",
        "yaml.load(text, Loader)",
        "eval(text)",
        "from_pretrained(folder, trust_remote_code=True)",
    ],
)
def test_such_calls_would_be_found(line: str) -> None:
    assert unsafe_calls(ast.parse(line))


# --- when it is unusable --------------------------------------------------------------------------


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(tmp_path)


@pytest.fixture
def peer(watch: Watch) -> Iterator[tuple[Channel[Event], ShmConnector]]:
    """A process that has a stage's channel and connector, and no pickle."""
    run = new_run_token()
    lock = RunLock(run)
    connector = ShmConnector(run, 1 << 24)
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, HERE / "plain_peer.py", str(theirs.fileno()), run, watch.folder],
            pass_fds=[theirs.fileno()],
            env=os.environ | {"PYTHONPATH": watch.hook()},
        )
    connection: Connection[object, object] = Connection(ours.detach())
    channel: Channel[Event] = Channel(connection, Event)
    try:
        yield channel, connector
        channel.send(Stop())
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        channel.close()
        connector.close()
        lock.close()


def test_chunks_cross_without_pickle(
    peer: tuple[Channel[Event], ShmConnector], watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways, small ones and such as get a segment; this side has no pickle either."""
    channel, connector = peer
    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.delattr(f"pickle.{name}")
    for seq, count in enumerate((3, 1 << 17)):
        rows = torch.arange(4 * count, dtype=torch.float32).reshape(count, 4)
        payload = Payload({"rows": per_token(rows)}, {"voice": "alto"})
        size = connector.put(f"k{seq}", encode(payload))
        channel.send(Deliver([("r", Ref("p", "e", seq, False, f"k{seq}", size, payload.specs()))]))
        step, (frame,) = channel.receive()
        assert isinstance(step, Step)
        (back,) = step.refs
        assert back.key is not None
        got = decode(connector.take(back.key), expect=back.fields)
        assert torch.equal(got.fields["rows"].tensor, rows)
        assert frame == rows.numpy().tobytes()
    assert watch.uses == []
    assert len(watch.watched) == 1


def test_who_unpickled_would_be_found(
    peer: tuple[Channel[Event], ShmConnector], watch: Watch
) -> None:
    """Otherwise the tests beside this one would prove nothing."""
    channel, _ = peer
    channel.send(Discard([]))
    event, _ = channel.receive()
    assert isinstance(event, Failed)
    assert "pickle.loads is not to be used" in event.error.message
    (use,) = watch.uses
    assert "plain_peer.py" in use


@pytest.mark.slow
def test_the_voice_pipeline_serves_without_pickle() -> None:
    """Every stage in a process of its own, and ours: from the moment that all are ready."""
    found = report_of(HERE / "no_pickle_voice.py")
    assert found["uses"] == []
    assert "Paris" in found["text"]
    assert min(found["seconds"]) > 0.3
    stages = [line for line in found["watched"] if "antiphon.stage.process" in line]
    assert len(stages) >= 3
