"""Commands that need no engine: help, listing, drawing, the resolved configuration."""

from __future__ import annotations

import importlib.metadata
import resource
import signal
import subprocess
from pathlib import Path

import msgspec.yaml
import pytest

from antiphon.cli.main import build_parser
from antiphon.errors import InvalidRequestError
from antiphon.pipeline.draw import draw
from antiphon.pipeline.registry import BUILT_IN
from commands import Antiphon, command
from sample_pipeline import TOPOLOGY

HEAVY = "sys.modules.keys() & {'torch', 'vllm', 'transformers'}"


def test_version(antiphon: Antiphon) -> None:
    done = antiphon("--version")
    assert done.stdout == f"antiphon {importlib.metadata.version('antiphon')}\n"


def test_help_shows_examples_and_commands(antiphon: Antiphon) -> None:
    done = antiphon("--help")
    assert done.returncode == 0
    assert 'antiphon chat "Why is the sky blue?"' in done.stdout
    for name in ("chat", "say", "pipelines", "check", "faults", "bench"):
        assert f"\n    {name} " in done.stdout


def test_list_shows_what_cannot_be_loaded(antiphon: Antiphon) -> None:
    done = antiphon("pipelines")
    assert done.returncode == 0
    lines = {line.split("  ")[0]: line for line in done.stdout.splitlines()}
    assert list(lines) == sorted({*BUILT_IN, "broken", "halves", "painting", "sample"})
    assert "cannot be loaded" in lines["broken"]
    assert "thinker → talker → code2wav" in lines["sample"]


def test_drawing(antiphon: Antiphon) -> None:
    assert antiphon("pipelines", "sample").stdout == f"{draw(TOPOLOGY)}\n"


def test_printed_configuration_is_the_same_twice(antiphon: Antiphon, workplace: Path) -> None:
    """It holds every default, starts nothing and needs no text."""
    arguments = ("chat", "--pipeline", "sample", "--in-process", "--print-config")
    first, second = antiphon(*arguments), antiphon(*arguments)
    assert first.stdout == second.stdout
    printed = msgspec.yaml.decode(first.stdout)
    assert printed["connector"] == "inproc"
    assert printed["stages"]["talker"]["input_wait_timeout_s"] == 600
    assert list(workplace.iterdir()) == []


def test_printed_configuration_can_be_deployed(antiphon: Antiphon, workplace: Path) -> None:
    """As it is; either command prints it, without a text and a place for the speech."""
    first = antiphon("chat", "--pipeline", "sample", "--model", "talker=/t", "--print-config")
    (workplace / "d.yaml").write_text(first.stdout)
    second = antiphon("say", "--deployment", "d.yaml", "--print-config")
    assert second.stdout == first.stdout
    assert "pipeline: sample\n" in first.stdout


@pytest.mark.parametrize(
    ("given", "chosen"), [(("--pipeline", "sample"), "sample"), ((), "voice")], ids=str
)
def test_deployment_of_any_pipeline(
    given: tuple[str, ...], chosen: str, antiphon: Antiphon, workplace: Path
) -> None:
    (workplace / "d.yaml").write_text("stages: {thinker: {threads: 2}}\n")
    printed = msgspec.yaml.decode(
        antiphon("chat", *given, "--deployment", "d.yaml", "--print-config").stdout
    )
    assert (printed["pipeline"], printed["stages"]["thinker"]["threads"]) == (chosen, 2)


def test_models_on_the_command_line(antiphon: Antiphon, workplace: Path) -> None:
    """They win over the file's, in any command that starts a pipeline."""
    (workplace / "d.yaml").write_text("pipeline: sample\nmodels: {thinker: /old, talker: /kept}\n")
    given = ("--deployment", "d.yaml", "--model", "thinker=/a=b", "--print-config")
    printed = antiphon("chat", *given)
    models = msgspec.yaml.decode(printed.stdout)["models"]
    assert models == {"thinker": "/a=b", "talker": "/kept"}
    whole = antiphon("say", "hi", "--out", "x", *given, "--model", "./a=b")
    models = msgspec.yaml.decode(whole.stdout)["models"]
    assert models == {"*": "./a=b", "thinker": "/a=b"}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("taker=/a", "models.taker: pipeline sample has no such stage; did you mean talker?"),
        ("talker=", "argument --model: 'talker=' names no folder; see antiphon chat --help"),
        ("./none", "./none is not a folder: give the folder of a checkpoint"),
    ],
)
def test_wrong_model_on_the_command_line(antiphon: Antiphon, model: str, message: str) -> None:
    done = antiphon("chat", "hi", "--pipeline", "sample", "--model", model)
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.returncode == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["pipelines"],
        ["pipelines", "sample"],
        ["chat", ""],
        ["chat", "--print-config", "--pipeline", "sample"],
        ["chat", "hi", "--pipeline", "nothing"],
        ["say", "hi"],
        ["bench", "stream", "--help"],
        ["bench", "worker", "--help"],
        ["faults"],
        ["bench", "stream", "--pipeline", "sample"],
    ],
)
def test_light_commands_import_nothing_heavy(
    arguments: list[str], environment: dict[str, str]
) -> None:
    """Neither vllm nor torch, nor anything else that takes its time."""
    script = (
        "import sys\nfrom antiphon.cli.main import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
        f"assert not {HEAVY}, {HEAVY}"
    )
    done = subprocess.run(
        [*command([])[:1], "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_help_takes_well_under_a_second(antiphon: Antiphon) -> None:
    """In processor time, which other work on the machine does not change much."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    antiphon("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used < 0.8


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)
def test_signal_while_waiting_for_a_question(
    number: signal.Signals, code: int, environment: dict[str, str], workplace: Path
) -> None:
    """One line, the signal's exit code, nothing left behind."""
    process = subprocess.Popen(
        command(["chat", "--pipeline", "sample"]),
        cwd=workplace,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdin is not None
        assert process.stderr is not None
        # A pipe holds 64 KiB: writing twice that returns when the command reads and waits.
        process.stdin.write(b"\n" * (1 << 17))
        process.stdin.flush()
        process.send_signal(number)
        stderr = process.stderr.read()
        assert process.wait(timeout=30) == code
    assert stderr == b"antiphon: interrupted\n"
    assert list(workplace.iterdir()) == []


def test_reader_that_goes_away(environment: dict[str, str]) -> None:
    """`antiphon --help | true` ends without a word on stderr."""
    with subprocess.Popen(
        command(["pipelines", "sample"]),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=30) == 1


def test_parser_reads_a_whole_line() -> None:
    options = build_parser().parse_args(
        ["chat", "hi", "--max-tokens", "9", "--no-progress", "--deployment", "d.yaml"]
    )
    assert (options.text, options.max_tokens, options.progress) == ("hi", 9, False)
    assert options.deployment == Path("d.yaml")
    assert not options.verbose


@pytest.mark.parametrize("line", [["-v", "check"], ["check", "-v"]])
def test_verbose_works_on_both_sides(line: list[str]) -> None:
    assert build_parser().parse_args(line).verbose


@pytest.mark.parametrize(
    ("given", "expected"), [([], (1, 2, 4, 8)), (["--concurrency", "4, 1,4"], (1, 4))]
)
def test_numbers_of_callers(given: list[str], expected: tuple[int, ...]) -> None:
    """In order, each once."""
    assert build_parser().parse_args(["bench", "stream", *given]).concurrency == expected


@pytest.mark.parametrize("command_", ["chat", "say"])
def test_help_shows_what_to_pipe_sound_into(command_: str, antiphon: Antiphon) -> None:
    assert "--raw | aplay -r 24000 -f S16_LE" in antiphon(command_, "--help").stdout


@pytest.mark.parametrize("number", ["-1", "1.5", "many"])
def test_tokens_are_a_whole_number(number: str) -> None:
    with pytest.raises(InvalidRequestError, match="whole number"):
        build_parser().parse_args(["chat", "hi", f"--max-tokens={number}"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("talkr=2", "replicas.talkr: pipeline voice has no such stage; did you mean talker"),
        ("talker", "'talker' is not STAGE=N, such as talker=2"),
        ("talker=0", "'0' is not a whole number of at least 1"),
    ],
)
@pytest.mark.parametrize("command", [("serve",), ("bench", "soak")], ids=" ".join)
def test_replicas_that_cannot_be(
    antiphon: Antiphon, command: tuple[str, ...], given: str, message: str
) -> None:
    done = antiphon(*command, "--replicas", given)
    assert done.returncode == 2
    assert message in done.stderr
