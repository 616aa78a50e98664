"""The examples that bring their pipeline along, each in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest

OFFLINE = Path(__file__).parents[2] / "examples" / "offline"

# Each starts its engines.
pytestmark = pytest.mark.timeout(400)
slow = pytest.mark.slow


def run(name: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("VLLM_")  # engines of other tests may have run in this process
    }
    return subprocess.run(
        [sys.executable, str(OFFLINE / name), *arguments],
        cwd=folder,
        env=environment | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=360,
    )


def output(name: str, folder: Path, *arguments: str) -> str:
    """What an example prints; it has to go well."""
    done = run(name, folder, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def voiced_s(file: Path) -> float:
    """Seconds of a WAV file in which something is heard."""
    with wave.open(str(file)) as sound:
        assert (sound.getnchannels(), sound.getsampwidth()) == (1, 2)
        step = sound.getframerate() // 50  # 20 ms
        samples = np.frombuffer(sound.readframes(sound.getnframes()), "<i2") / 32768
    frames = samples[: len(samples) // step * step].reshape(-1, step)
    return 0.02 * int((np.sqrt((frames**2).mean(1)) > 0.01).sum())


@slow
def test_an_answer(tmp_path: Path) -> None:
    assert "Paris" in output("answer.py", tmp_path)
    assert voiced_s(tmp_path / "answer.wav") > 0.3


@slow
def test_events_as_they_come(tmp_path: Path) -> None:
    lines = output("stream.py", tmp_path).splitlines()
    kinds = [line.split()[0] for line in lines[:-2]]
    assert set(kinds) == {"text", "speech"}
    assert kinds[0] == "text"
    assert re.fullmatch(r"\d+\.\d s of speech, all there after \d+\.\d s", lines[-1])


@slow
def test_a_conversation_that_is_interrupted(tmp_path: Path) -> None:
    said = output("conversation.py", tmp_path)
    interrupted, answered = said.index("[interrupt, "), said.index("[stop, ")
    assert "sea" in said[:interrupted]
    assert "Paris" in said[interrupted:answered]
    assert voiced_s(tmp_path / "answer.wav") > 0.3


@slow
def test_several_at_once(tmp_path: Path) -> None:
    said = output("several_at_once.py", tmp_path, "Name three rivers.", "What is a volcano?")
    assert "failed" not in said
    for number in (1, 2):
        assert f"{number}. " in said
        assert voiced_s(tmp_path / f"answer-{number}.wav") > 0.3


@slow
def test_a_question_by_voice(tmp_path: Path) -> None:
    said = output("hear.py", tmp_path)
    assert "Heard: What is the capital of France?" in said
    assert "Paris" in said
    assert voiced_s(tmp_path / "answer.wav") > 0.3


@pytest.mark.parametrize("name", ["answer.py", "conversation.py"])
def test_a_pipeline_that_is_not_there(tmp_path: Path, name: str) -> None:
    done = run(name, tmp_path, "--pipeline", "voices")
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert "voices" in line
    assert not list(tmp_path.iterdir())


@slow
def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    done = run("hear.py", tmp_path, "nowhere.wav")
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert "nowhere.wav" in line
