"""`antiphon chat --audio`: what is read before anything starts, and what is asked."""

from __future__ import annotations

import wave
from dataclasses import replace
from pathlib import Path

import pytest

from antiphon.cli.chat import Chat
from antiphon.cli.main import build_parser
from antiphon.cli.outputs import choose_outputs
from antiphon.cli.setup import Setup
from antiphon.errors import EmptyInputError, InvalidRequestError
from antiphon.pipeline.audio import AudioClip, as_clips
from antiphon.pipeline.deployment import Deployment
from antiphon.pipeline.topology import Topology
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
        ("x.wav", "entry chat of pipeline voice takes no audio; give text alone"),
    ],
)
def test_mistakes_are_found_before_anything_starts(sound: Path, name: str, message: str) -> None:
    (sound.parent / "text.wav").write_text("hello")
    options = build_parser().parse_args(["chat", "hi", "--audio", str(sound.parent / name)])
    with pytest.raises(InvalidRequestError, match=message):
        options.run(options)
