"""`chat` with pipelines of other modalities: what it asks for and writes, and mistakes."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from antiphon import Deployment, Reply, TextDelta, Timings
from antiphon.cli.answer import answer, numbered
from antiphon.cli.chat import Chat
from antiphon.cli.main import build_parser
from antiphon.cli.outputs import PICTURE, SOUND, Outputs, choose_outputs
from antiphon.cli.setup import Setup
from antiphon.cli.table import timings_table
from antiphon.errors import InvalidRequestError, StageError
from antiphon.orchestrator.api import Finished, ImageChunk, OmniEvent, OmniRequest
from antiphon.pipeline.topology import Edge, EdgeMode, Stage, StageKind, Topology
from commands import Antiphon
from kv_pipelines import HALVES, PAINTING
from sample_pipeline import CODE2WAV, CODES, MODEL, SPEECH, TALKER, THINKER, TOPOLOGY

PAINTER = Stage("painter", StageKind.GENERATION, MODEL, output="image")
SCENE = Edge("scene", "thinker", "painter", EdgeMode.FULL, "sample:A", "sample:B", shared=True)
# Text, sound and pictures; pictures alone.
ALL = replace(
    TOPOLOGY,
    name="all",
    stages=(THINKER, TALKER, CODE2WAV, PAINTER),
    edges=(SPEECH, CODES, SCENE),
)
SILENT = replace(
    PAINTING, name="silent", stages=(replace(THINKER, output=None), PAINTING.stage("painter"))
)
FILM = replace(
    PAINTING, name="film", stages=(replace(THINKER, output=None), replace(PAINTER, output="film"))
)


def chosen(
    topology: Topology, out: str | None = None, *, text_only: bool = False, raw: bool = False
) -> Outputs:
    path = None if out is None else Path(out)
    return choose_outputs(topology, "chat", out=path, text_only=text_only, raw=raw)


# --- what is asked for, and which files -----------------------------------------------------------

TEXT, BOTH, EVERYTHING = ("text",), ("text", "audio"), ("text", "image", "audio")


@pytest.mark.parametrize(
    ("topology", "options", "expected"),
    [
        (HALVES, {}, Outputs(TEXT)),
        (HALVES, {"text_only": True}, Outputs(TEXT)),
        (TOPOLOGY, {}, Outputs(BOTH, SOUND)),
        (TOPOLOGY, {"out": "x"}, Outputs(BOTH, Path("x"))),
        (TOPOLOGY, {"raw": True}, Outputs(BOTH)),
        (TOPOLOGY, {"raw": True, "out": "x.wav"}, Outputs(BOTH, Path("x.wav"))),
        (TOPOLOGY, {"text_only": True}, Outputs(TEXT)),
        (PAINTING, {}, Outputs(("text", "image"), None, PICTURE)),
        (PAINTING, {"out": "x.PNG"}, Outputs(("text", "image"), None, Path("x.PNG"))),
        (PAINTING, {"text_only": True}, Outputs(TEXT)),
        (SILENT, {}, Outputs(("image",), None, PICTURE)),
        (ALL, {}, Outputs(EVERYTHING, SOUND, PICTURE)),
        (ALL, {"out": "x.png"}, Outputs(EVERYTHING, SOUND, Path("x.png"))),
        (ALL, {"out": "x.wav"}, Outputs(EVERYTHING, Path("x.wav"), PICTURE)),
        (ALL, {"raw": True}, Outputs(EVERYTHING, None, PICTURE)),
    ],
)
def test_what_the_pipeline_gives_is_asked_for(
    topology: Topology, options: dict[str, object], expected: Outputs
) -> None:
    """The suffix of --out says which file it names; the other keeps its default."""
    found = chosen(topology, **options)  # type: ignore[arg-type]
    assert set(found.modalities) == set(expected.modalities)
    assert (found.sound, found.picture) == (expected.sound, expected.picture)


@pytest.mark.parametrize(
    ("topology", "options", "message"),
    [
        (
            HALVES,
            {"out": "x.wav"},
            "--out needs speech or pictures, and pipeline halves gives text",
        ),
        (HALVES, {"raw": True}, "--raw needs speech, and pipeline halves gives text"),
        (PAINTING, {"raw": True}, "--raw needs speech, and pipeline painting gives text, image"),
        (PAINTING, {"out": "x.wav"}, r"--out x\.wav: .* gives text, image; name a \.png file"),
        (PAINTING, {"out": "x.jpg"}, r"--out x\.jpg: .*; name a \.png file"),
        (TOPOLOGY, {"out": "x.png"}, r"--out x\.png: .* gives text, audio; name a \.wav file"),
        (TOPOLOGY, {"out": "x.mp3"}, r"--out x\.mp3: .* gives text, audio; name a \.wav file"),
        (ALL, {"out": "x"}, r"--out x: .*; name a \.wav or \.png file"),
        (SILENT, {"text_only": True}, "--text-only needs text, and pipeline silent gives image"),
        (FILM, {}, "pipeline film gives film, which this command cannot show"),
    ],
)
def test_options_that_the_pipeline_cannot_serve(
    topology: Topology, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        chosen(topology, **options)  # type: ignore[arg-type]


def test_files_are_numbered_from_two() -> None:
    assert [str(numbered(Path("a/x.png"), i)) for i in range(3)] == [
        "a/x.png",
        "a/x-2.png",
        "a/x-3.png",
    ]


# --- the request ----------------------------------------------------------------------------------


def chat(topology: Topology, *options: str) -> Chat:
    parsed = build_parser().parse_args(["chat", "hello", *options])
    outputs = chosen(topology, text_only=parsed.text_only)
    return Chat(parsed, Setup(topology, Deployment(pipeline=topology.name)), outputs, None)


@pytest.mark.parametrize(
    ("topology", "options", "writer"),
    [
        (TOPOLOGY, (), "thinker"),
        (HALVES, (), "decode"),
        (PAINTING, (), "thinker"),
        (PAINTING, ("--text-only",), "thinker"),
        (SILENT, (), "thinker"),  # no text: the first stage
    ],
)
def test_tokens_are_those_of_the_stage_that_writes(
    topology: Topology, options: tuple[str, ...], writer: str
) -> None:
    request = chat(topology, "--max-tokens", "9", *options).request("hello")
    assert request.sampling == {writer: {"max_tokens": 9}}
    request.check(topology)


def test_the_number_of_pictures_reaches_the_request() -> None:
    assert chat(PAINTING).request("hello").n == 1
    assert chat(PAINTING, "--n", "3").request("hello").n == 3


# --- an answer ------------------------------------------------------------------------------------


@dataclass
class Script:
    """Stands in for `AsyncOmni`: each answer is these shades of grey, and a word."""

    answers: Sequence[Sequence[int]]
    requests: list[OmniRequest] = field(default_factory=list)

    async def stream(self, request: OmniRequest) -> AsyncGenerator[OmniEvent]:
        shades = self.answers[len(self.requests)]
        self.requests.append(request)
        images = [np.full((2, 3, 3), shade, np.uint8) for shade in shades]
        yield TextDelta("done")
        for index in reversed(range(len(images))):
            yield ImageChunk(images[index], index)
        timings = Timings(total_s=1.0, ttfi_s=0.5)
        yield Finished(Reply("done", None, 24_000, "stop", timings, images))


def shade_of(path: Path) -> int:
    from PIL import Image

    with Image.open(path) as image:
        return int(np.asarray(image)[0, 0, 0])


def shades(folder: Path) -> dict[str, int]:
    return {file.name: shade_of(file) for file in sorted(folder.iterdir())}


async def test_pictures_are_written_in_their_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = OmniRequest(text="hello")
    await answer(Script([[1, 2, 3]]), request, None, picture=tmp_path / "x.png")
    assert shades(tmp_path) == {"x.png": 1, "x-2.png": 2, "x-3.png": 3}
    captured = capsys.readouterr()
    assert captured.out == "done\n"
    joined = "".join(captured.err.split())
    for name in ("x.png", "x-2.png", "x-3.png"):
        assert f"{name}(3x2)" in joined
    assert "TTFI0.50s" in joined


async def test_pictures_are_counted_on_through_a_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    talk = chat(PAINTING, "--n", "2")
    script = Script([[1, 2], [3], [4]])
    for text in ("one", "two", "three"):
        await talk.ask(script, text)  # type: ignore[arg-type]
    assert shades(tmp_path) == {
        "reply.png": 1,
        "reply-2.png": 2,
        "reply-3.png": 3,
        "reply-4.png": 4,
    }
    assert [len(request.messages) for request in script.requests] == [0, 2, 4]


async def test_questions_without_text_for_an_answer_stand_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    talk = chat(SILENT)
    script = Script([[1], [2]])
    for text in ("one", "two"):
        await talk.ask(script, text)  # type: ignore[arg-type]
    assert [request.messages for request in script.requests] == [[], []]


async def test_an_answer_without_a_picture_is_no_success(tmp_path: Path) -> None:
    """C59: its criterion was never met, say, and nothing was handed over."""
    with pytest.raises(StageError, match="made no picture"):
        await answer(Script([[]]), OmniRequest(text="x"), None, picture=tmp_path / "x.png")
    assert shades(tmp_path) == {}


def test_table_shows_the_time_to_the_first_picture() -> None:
    out = io.StringIO()
    Console(file=out, width=100).print(timings_table(Timings(2.0, ttft_s=0.25, ttfi_s=1.5)))
    assert out.getvalue().startswith("TTFT 0.25 s   TTFI 1.50 s   total 2.00 s\n")


# --- the command ----------------------------------------------------------------------------------

HALVES_CHAT = ("chat", "hello", "--pipeline", "halves")
PAINTING_CHAT = ("chat", "hello", "--pipeline", "painting")

MISTAKES = {
    "raw without speech": ((*HALVES_CHAT, "--raw"), "--raw needs speech, and pipeline halves"),
    "a file without anything to write": ((*HALVES_CHAT, "--out", "x.wav"), "--out needs speech or"),
    "a sound file for pictures": ((*PAINTING_CHAT, "--out", "x.wav"), "name a .png file"),
    "several without companions": ((*HALVES_CHAT, "--n", "2"), "n is 2, but pipeline halves"),
    "several texts": ((*PAINTING_CHAT, "--text-only", "--n", "2"), "n is 2, but"),
    "too many": ((*PAINTING_CHAT, "--n", "17"), "n is 17; give a number from 1 to 16"),
    "none": ((*PAINTING_CHAT, "--n", "0"), "'0' is not a whole number of at least 1"),
    "folder missing": ((*PAINTING_CHAT, "--out", "nowhere/x.png"), "nowhere does not exist"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistake(case: str, antiphon: Antiphon, workplace: Path) -> None:
    arguments, message = MISTAKES[case]
    done = antiphon(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("antiphon: error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(workplace.iterdir()) == []


def test_every_picture_can_be_written(antiphon: Antiphon, workplace: Path) -> None:
    """Found out before anything starts."""
    (workplace / "reply-2.png").mkdir()
    done = antiphon(*PAINTING_CHAT, "--n", "2")
    assert done.returncode == 2
    assert "reply-2.png is a folder" in done.stderr


def test_help_names_the_files(antiphon: Antiphon) -> None:
    text = " ".join(antiphon("chat", "--help").stdout.split())
    for part in (str(SOUND), str(PICTURE), "--n N", "text, speech, pictures", "--pipeline imagine"):
        assert part in text


def test_nothing_of_pictures_is_loaded_before_one_is_written() -> None:
    """Pillow takes its time."""
    script = "import antiphon, antiphon.cli.chat, sys; assert 'PIL' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    assert done.returncode == 0
