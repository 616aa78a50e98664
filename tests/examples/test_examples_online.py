"""The examples that talk to a server, run as their readers would, against a real one."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from antiphon.serve.sound_out import PCM_RATE
from live_server import LiveServer

EXAMPLES = Path(__file__).parents[2] / "examples"
ONLINE = EXAMPLES / "online"
ALL = sorted(
    str(file.relative_to(ONLINE))
    for file in ONLINE.rglob("*")
    if file.suffix in (".py", ".sh", ".mjs")
)
QUESTION = "What is the capital of France?"  # what the examples ask by themselves

# The first test waits for the server, which is that of users, with every engine.
pytestmark = pytest.mark.timeout(300)
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with LiveServer() as server:
        yield server


@pytest.fixture(scope="module")
def question(server: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The question as a WAV file, spoken by the server."""
    folder = tmp_path_factory.mktemp("question")
    output(run("curl/speech.sh", server.url, folder, QUESTION, "question.wav"))
    return folder / "question.wav"


@cache
def node() -> list[str]:
    """Node with what it takes to run an example. Skips where there is none that can."""
    path = shutil.which("node")
    if path is None:
        pytest.skip("no node: the JavaScript examples need one")
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    major, minor = (int(part) for part in said.strip().removeprefix("v").split(".")[:2])
    if major < 18:
        pytest.skip(f"node {said.strip()} is too old: the JavaScript examples need 18")
    if major >= 22:
        return [path]
    # It has the flag, and needs it for a WebSocket; the other examples do not mind.
    return [path, "--experimental-websocket"] if (major, minor) >= (20, 10) else [path]


def run(
    path: str, url: str, folder: Path, *arguments: str, model: str = "voice"
) -> subprocess.CompletedProcess[bytes]:
    """Start an example in `folder`, as its first lines say."""
    file = str(ONLINE / path)
    given = ["--url", url, "--model", model]
    match Path(path).suffix:
        case ".py":
            command = [sys.executable, file, *arguments, *given]
        case ".mjs":
            command = [*node(), file, *arguments, *given]
        case _:
            command = [file, *arguments]
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ANTIPHON_", "OPENAI_"))
    }
    environment |= {"ANTIPHON_URL": url, "ANTIPHON_MODEL": model}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, check=False, timeout=240
    )


def output(done: subprocess.CompletedProcess[bytes]) -> str:
    """What an example that went well has printed."""
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def voiced_s(data: bytes) -> float:
    """Seconds in which something is heard of a WAV file of one channel, or raw samples."""
    if data.startswith(b"RIFF"):
        assert int.from_bytes(data[24:28], "little") == PCM_RATE
        data = data[data.index(b"data") + 8 :]
    samples = np.frombuffer(data, "<i2").astype(np.float32) / 32768
    frames = samples[: len(samples) // 480 * 480].reshape(-1, 480)  # of 20 ms
    return 0.02 * int((np.sqrt((frames**2).mean(1)) > 0.01).sum())


@slow
@pytest.mark.parametrize("path", ["python/chat.py", "curl/chat.sh", "javascript/chat.mjs"])
def test_an_answer_in_text_and_speech(server: LiveServer, tmp_path: Path, path: str) -> None:
    assert "Paris" in output(run(path, server.url, tmp_path))
    assert voiced_s((tmp_path / "answer.wav").read_bytes()) > 0.3


@slow
@pytest.mark.parametrize(
    "path",
    ["python/chat_stream_audio.py", "javascript/chat_stream_audio.mjs"],
)
def test_an_answer_while_it_is_made(server: LiveServer, tmp_path: Path, path: str) -> None:
    done = run(path, server.url, tmp_path)
    assert output(done) == ""
    said = done.stderr.decode()
    assert "Paris" in said
    assert re.search(r"s of speech, the first after \d+\.\d\d s", said)
    assert voiced_s((tmp_path / "answer.pcm").read_bytes()) > 0.3


@slow
@pytest.mark.parametrize(
    "path", ["python/chat_stream_audio.py", "javascript/chat_stream_audio.mjs"]
)
def test_an_answer_for_a_player(server: LiveServer, tmp_path: Path, path: str) -> None:
    done = run(path, server.url, tmp_path, "--out", "-")
    assert done.returncode == 0, done.stderr.decode()
    assert voiced_s(done.stdout) > 0.3
    assert not list(tmp_path.iterdir())


@slow
def test_text_while_it_is_written(server: LiveServer, tmp_path: Path) -> None:
    assert "Paris" in output(run("curl/chat_stream.sh", server.url, tmp_path))


@slow
def test_a_question_with_quotes_and_lines(server: LiveServer, tmp_path: Path) -> None:
    asked = 'What is the capital of "France"?\n\t\\ été $HOME'
    assert output(run("curl/chat_stream.sh", server.url, tmp_path, asked)).strip()


@slow
@pytest.mark.parametrize("path", ["curl/speech.sh", "python/speech.py"])
def test_a_text_spoken(server: LiveServer, tmp_path: Path, path: str) -> None:
    output(run(path, server.url, tmp_path))
    assert voiced_s((tmp_path / "speech.wav").read_bytes()) > 0.3


@slow
def test_a_text_spoken_for_a_player(server: LiveServer, tmp_path: Path) -> None:
    done = run("curl/speech.sh", server.url, tmp_path, "Hello there.", "-")
    assert done.returncode == 0, done.stderr.decode()
    assert voiced_s(done.stdout) > 0.3
    assert not list(tmp_path.iterdir())


@slow
@pytest.mark.parametrize("path", ["curl/transcribe.sh", "python/transcribe.py"])
def test_speech_written_down(server: LiveServer, question: Path, tmp_path: Path, path: str) -> None:
    assert output(run(path, server.url, tmp_path, str(question))).strip() == QUESTION


@slow
def test_a_question_by_voice(server: LiveServer, question: Path, tmp_path: Path) -> None:
    done = run("python/chat.py", server.url, tmp_path, "--audio", str(question))
    assert "Paris" in output(done)
    assert voiced_s((tmp_path / "answer.wav").read_bytes()) > 0.3


@slow
@pytest.mark.parametrize(
    ("path", "file"),
    [("python/realtime.py", "answer.wav"), ("javascript/realtime.mjs", "answer.pcm")],
)
def test_a_conversation_that_is_interrupted(
    server: LiveServer, tmp_path: Path, path: str, file: str
) -> None:
    if path.endswith(".mjs") and _no_socket():
        pytest.skip("this node has no WebSocket: realtime.mjs needs 22, or 20.10 with a flag")
    said = output(run(path, server.url, tmp_path))
    heard, interrupted, answered = (
        said.index("Heard: "),
        said.index("[cancelled, "),
        said.index("[completed, "),
    )
    assert heard < interrupted < answered
    assert "sea" in said[heard:interrupted]
    assert "Paris" in said[interrupted:answered]
    assert voiced_s((tmp_path / file).read_bytes()) > 0.3


def _no_socket() -> bool:
    asked = subprocess.run(
        [*node(), "-p", "typeof WebSocket"], capture_output=True, text=True, check=True
    )
    return asked.stdout.strip() == "undefined"


@slow
def test_how_the_server_is(server: LiveServer, tmp_path: Path) -> None:
    health, version, models = output(run("curl/health.sh", server.url, tmp_path)).splitlines()
    assert '"status":"ok"' in health
    assert '"version":' in version
    assert '"id":"voice"' in models


def _arguments(path: str) -> tuple[str, ...]:
    """Of an example that does not start without."""
    return (__file__,) if "transcribe" in path else ()


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(p, marks=slow) if p.endswith(".py") and p != "python/chat.py" else p
        for p in ALL
    ],
)
def test_nobody_listens_there(tmp_path: Path, path: str) -> None:
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        done = run(path, url, tmp_path, *_arguments(path))
    assert done.returncode != 0
    (line,) = done.stderr.decode().strip().splitlines()
    assert re.search(r"connect", line, re.IGNORECASE), line


@slow
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(p, marks=slow) if p.endswith(".py") and p != "python/chat.py" else p
        for p in ALL
        if "health" not in p
    ],
)
def test_a_model_that_is_not_there(server: LiveServer, tmp_path: Path, path: str) -> None:
    """The reason is the server's."""
    done = run(path, server.url, tmp_path, *_arguments(path), model="nobody")
    assert done.returncode != 0
    said = done.stdout.decode() + done.stderr.decode()
    assert "'nobody' is not served here" in said
    assert len(said.strip().splitlines()) <= 2, said  # curl adds a line of its own
    assert not list(tmp_path.glob("*.wav"))


def test_every_example_is_in_the_table() -> None:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    listed = {link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("..")}
    files = {
        str(file.relative_to(EXAMPLES))
        for file in EXAMPLES.rglob("*")
        if file.suffix in (".py", ".sh", ".mjs")
    }
    assert listed == files
