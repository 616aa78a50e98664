"""`antiphon chat --audio`: what is read before anything starts, and what is asked."""

from __future__ import annotations

import wave
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest

from antiphon.cli.answer import answer
from antiphon.cli.chat import Chat
from antiphon.cli.main import build_parser
from antiphon.cli.outputs import choose_outputs
from antiphon.cli.setup import Setup
from antiphon.errors import EmptyInputError, InvalidRequestError
from antiphon.orchestrator.api import (
    Finished,
    OmniEvent,
    OmniRequest,
    Reply,
    TextDelta,
    Timings,
    TranscriptDelta,
)
from antiphon.pipeline.audio import AudioClip, as_clips
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.topology import Topology
from heard_pipeline import HEARD
from sample_pipeline import CHAT, SAY, TOPOLOGY

HEARING = replace(TOPOLOGY, entries=(replace(CHAT, inputs=("text", "audio")), SAY))


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    file = tmp_path / "x.wav"
    with wave.open(str(file), "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(16_000)
        writer.writeframes(bytes(4000))
    return file


def chat(*arguments: str, topology: Topology = HEARING) -> Chat:
    options = build_parser().parse_args(["chat", *arguments, "--text-only"])
    outputs = choose_outputs(topology, "chat", out=None, text_only=True, raw=False)
    setup = Setup(topology, Deployment(pipeline=topology.name))
    return Chat(options, setup, outputs, None, as_clips(options.audio or ()))


def test_sounds_come_before_the_text(sound: Path) -> None:
    talk = chat("hi", "--audio", str(sound), "--audio", str(sound))
    request = talk.request("hi")
    request.check(HEARING)
    assert talk.question == "hi"
    assert request.audio == [AudioClip.from_wav(sound)] * 2


def test_a_sound_alone_is_a_question(sound: Path) -> None:
    talk = chat("--audio", str(sound))
    assert talk.question == ""
    talk.request("").check(HEARING)
    assert chat().question is None  # a conversation, line by line
    with pytest.raises(EmptyInputError):
        chat().request("").check(HEARING)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.wav", "cannot read the audio file"),
        ("text.wav", "is not a WAV file"),
        ("x.wav", "entry chat of pipeline split takes no audio; give text alone"),
    ],
)
def test_mistakes_are_found_before_anything_starts(sound: Path, name: str, message: str) -> None:
    (sound.parent / "text.wav").write_text("hello")
    file = str(sound.parent / name)
    options = build_parser().parse_args(["chat", "hi", "--audio", file, "--pipeline", "split"])
    with pytest.raises(InvalidRequestError, match=message):
        options.run(options)


def test_what_was_heard_is_asked_for_where_a_stage_writes_it_down(sound: Path) -> None:
    talk = chat("--audio", str(sound), topology=HEARD)
    assert talk.modalities == ("transcript", "text")
    talk.request("").check(HEARD)
    assert talk.writer() == "thinker"
    assert talk.inputs == ("audio",)
    without = chat("hi", topology=HEARD)
    assert (without.modalities, without.inputs) == (("text",), ("text",))
    assert chat("--audio", str(sound)).modalities == ("text",)


async def test_what_was_heard_is_shown_once_before_the_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reply = Reply("Paris.", None, 24_000, "stop", Timings(1.0), transcript="Where\a to?")

    class Heard:
        async def stream(self, request: OmniRequest) -> AsyncGenerator[OmniEvent]:
            for event in (TranscriptDelta("Where\a"), TranscriptDelta(" to?"), TextDelta("Paris.")):
                yield event
            yield Finished(reply)

    await answer(Heard(), OmniRequest(text="hi"), None)
    shown = capsys.readouterr()
    assert shown.out == "Paris.\n"
    assert shown.err.startswith("heard: Where to?\n")
    assert shown.err.count("heard") == 1
