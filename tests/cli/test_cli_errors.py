"""Mistakes on the command line: exit code 2, one line on stderr, nothing left behind."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

from commands import Antiphon, command

SAY = ("say", "hello", "--pipeline", "sample", "--out")
CHAT = ("chat", "hello", "--pipeline", "sample")

WRONG = {
    "empty text": (("chat", ""), "the text is empty"),
    "blank text": (("say", " \n", "--out", "x.wav"), "the text is empty"),
    "unknown pipeline": (
        ("chat", "hello", "--pipeline", "voise"),
        "no pipeline is called 'voise'; did you mean voice?",
    ),
    "unknown pipeline to draw": (("pipelines", "sampel"), "did you mean sample?"),
    "folder missing": ((*SAY, "nowhere/x.wav"), "nowhere does not exist"),
    "output is a folder": ((*SAY, "."), ". is a folder"),
    "output is a device": ((*SAY, "/dev/null"), "/dev/null is not a regular file"),
    "output below a file": ((*SAY, "/dev/null/x.wav"), "/dev/null is not a folder"),
    "empty output path": ((*SAY, ""), "is a folder"),
    "output of a benchmark": (("bench", "scheduler", "--json", "nowhere/x"), "does not exist"),
    "no deployment file": ((*CHAT, "--deployment", "none.yaml"), "none.yaml: cannot be read"),
    "speech file without speech": ((*CHAT, "--text-only", "--out", "x.wav"), "--out needs speech"),
    "raw sound without speech": ((*CHAT, "--text-only", "--raw"), "--raw needs speech"),
    "raw sound and a bad file": (
        (*SAY, "nowhere/x.wav", "--raw"),
        "nowhere does not exist",
    ),
    "zero tokens": ((*CHAT, "--max-tokens", "0"), "'0' is not a whole number of at least 1"),
    "no command": ((), "COMMAND"),
    "unknown command": (("chatt",), "invalid choice: 'chatt'"),
    "unknown option": ((*CHAT, "--pipline", "x"), "unrecognized arguments: --pipline"),
    "say without out": (("say", "hello"), "give --out FILE, or --raw and a player"),
    "say without text": (("say", "--out", "x.wav"), "there is nothing to say; give TEXT"),
    "say where nothing is spoken as it is": (
        ("say", "hello", "--pipeline", "qwen3-omni"),
        "pipeline qwen3-omni answers and does not speak texts as they are; use `antiphon chat`",
    ),
    "chat where nothing is answered": (
        ("chat", "hello", "--pipeline", "qwen3-tts"),
        "pipeline qwen3-tts speaks texts as they are and answers none; use `antiphon say`",
    ),
    "another sound format": ((*SAY, "x.mp3"), "x.mp3: sound is written as WAV and nothing else"),
    "another format of an answer": ((*CHAT, "--out", "x.mp3"), "name a .wav file"),
    "two models of a stage": (
        (*CHAT, "--model", "talker=a", "--model", "thinker=a", "--model", "talker=b"),
        "--model names two checkpoints for stage talker, a and b; leave one out",
    ),
    "two models of all stages": (
        (*CHAT, "--model", "a", "--model", "b"),
        "--model names two checkpoints for all stages, a and b",
    ),
    "no callers": (("bench", "stream", "--concurrency", "1,0"), "'0' is not a whole number"),
    "callers without a comma": (("bench", "stream", "--concurrency", "1 2"), "'1 2' is not"),
    "no rounds": (("bench", "stream", "--rounds", "0"), "'0' is not a whole number"),
    "nothing to compare": (("bench", "stream", "--pipeline", "sample"), "has mode stream"),
    "output of bench worker": (("bench", "worker", "--json", "nowhere/x"), "does not exist"),
    "output of bench kv": (("bench", "kv", "--json", "nowhere/x"), "does not exist"),
    "no size": (("bench", "kv", "--sizes", "0"), "'0' is not a whole number"),
    "output of bench stream": (("bench", "stream", "--json", "nowhere/x"), "does not exist"),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistake(case: str, antiphon: Antiphon, workplace: Path) -> None:
    arguments, message = WRONG[case]
    done = antiphon(*arguments)
    assert_one_line_error(done.returncode, done.stderr, message)
    assert done.stdout == ""
    assert list(workplace.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "stages: {talker: {max_num_seq: 3}}",
            "d.yaml: stages.talker.max_num_seq: unknown key; did you mean max_num_seqs?",
        ),
        ("stages: {talkr: {}}\npipeline: sample", "stages.talkr: .* did you mean talker?"),
        ("pipeline: voice", "this deployment is for voice, not for sample"),
        ("start_timeout_s: -1", "d.yaml: start_timeout_s is -1"),
        (
            "stages: {talker: {input_wait_timeout_s: -2}}",
            "stages.talker.input_wait_timeout_s is -2",
        ),
    ],
)
def test_bad_deployment(text: str, message: str, antiphon: Antiphon, workplace: Path) -> None:
    (workplace / "d.yaml").write_text(text)
    done = antiphon(*CHAT, "--deployment", "d.yaml")
    assert_one_line_error(done.returncode, done.stderr, *message.split(" .* "))
    assert [file.name for file in workplace.iterdir()] == ["d.yaml"]


@pytest.mark.parametrize("value", ["-1", "nan", "soon"])
def test_bad_timeout_in_the_environment(value: str, antiphon: Antiphon, workplace: Path) -> None:
    done = antiphon(*CHAT, settings={"ANTIPHON_INPUT_WAIT_TIMEOUT_S": value})
    assert_one_line_error(done.returncode, done.stderr, "ANTIPHON_INPUT_WAIT_TIMEOUT_S")
    assert list(workplace.iterdir()) == []


@pytest.mark.parametrize("arguments", [CHAT, ("say", "hello", "--pipeline", "sample")])
def test_raw_sound_is_not_for_a_terminal(
    arguments: tuple[str, ...], environment: dict[str, str], workplace: Path
) -> None:
    """The message shows what to pipe it into, with the pipeline's own sample rate."""
    reading, terminal = pty.openpty()
    try:
        done = subprocess.run(
            command([*arguments, "--raw"]),
            cwd=workplace,
            env=environment,
            stdout=terminal,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(terminal)
        os.close(reading)
    assert_one_line_error(done.returncode, done.stderr, "--raw | aplay -r 24000 -f S16_LE")
    assert list(workplace.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_no_permission(antiphon: Antiphon, workplace: Path) -> None:
    (workplace / "closed").mkdir(mode=0o500)
    done = antiphon(*SAY, "closed/x.wav")
    assert_one_line_error(done.returncode, done.stderr, "no permission to write into")


@pytest.mark.parametrize("stdin", ["", "\n  \n\n"])
def test_nothing_on_standard_input(stdin: str, antiphon: Antiphon, workplace: Path) -> None:
    done = antiphon("chat", "--pipeline", "sample", stdin=stdin)
    assert_one_line_error(done.returncode, done.stderr, "standard input is empty")
    assert list(workplace.iterdir()) == []


def test_defect_of_a_pipeline_is_not_the_callers(antiphon: Antiphon) -> None:
    """Exit code 1, and the traceback only with -v."""
    quiet = antiphon("pipelines", "broken")
    assert quiet.returncode == 1
    assert quiet.stderr.startswith("antiphon: error: pipeline broken cannot be imported")
    assert quiet.stderr.count("\n") == 1
    loud = antiphon("-v", "pipelines", "broken")
    assert loud.returncode == 1
    assert "Traceback" in loud.stderr
    assert loud.stderr.splitlines()[-1] == quiet.stderr.strip()


def assert_one_line_error(code: int, stderr: str, *parts: str) -> None:
    assert code == 2, stderr
    assert stderr.startswith("antiphon: error: ")
    assert stderr.endswith("\n")
    assert stderr.count("\n") == 1
    for part in parts:
        assert part in stderr
