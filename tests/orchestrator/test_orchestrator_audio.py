"""Audio on its way from the caller to the stage that hears it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from antiphon.errors import EmptyInputError, InputTooLongError, InvalidRequestError, TopologyError
from antiphon.orchestrator.api import OmniRequest
from antiphon.orchestrator.intake import Intake
from antiphon.pipeline.audio import AudioClip
from antiphon.pipeline.entry import EntryRequest, Message, Prompt
from antiphon.pipeline.topology import Entry
from antiphon.stage.messages import Submit
from routing import Routing, word_tokenizer
from sample_pipeline import CHAT, SAY, TOPOLOGY

LOUD = AudioClip.from_array(np.ones(2000, np.float32), 16_000)
QUIET = AudioClip.from_array(np.zeros(2000, np.int16), 8_000)
HEARING = replace(TOPOLOGY, entries=(replace(CHAT, inputs=("text", "audio")), SAY))


class Ears:
    """One prompt: an id for each message, and its clips."""

    def __init__(self, checkpoint: Path) -> None:
        pass

    def prompts(self, request: EntryRequest) -> list[list[int] | Prompt]:
        messages = request.messages or (Message("user", request.text, request.audio),)
        clips = tuple(clip for message in messages for clip in message.audio)
        return [Prompt([len(message.content) for message in messages], clips)]

    def continuation(self, text: str) -> list[int]:
        return [len(text)]


def intake(folder: Path) -> Intake:
    word_tokenizer().save(str(folder / "tokenizer.json"))
    entry = Entry("chat", "thinker", f"{__name__}:Ears", inputs=("text", "audio"))
    topology = replace(HEARING, entries=(entry, SAY))
    return Intake(topology, {stage: str(folder) for stage in TOPOLOGY.stage_names}, ("chat",))


def test_a_clip_goes_to_the_stage_that_hears_and_to_no_other() -> None:
    routing = Routing(HEARING)
    prompt = Prompt([1, 2], (LOUD, QUIET))
    routing.submit(prompts=[prompt])  # type: ignore[list-item]
    sent = {name: stage.sent(Submit)[0] for name, stage in routing.stages.items()}
    assert {name: submit.audio for name, submit in sent.items()} == {
        "thinker": (LOUD, QUIET),
        "talker": (),
        "code2wav": (),
    }
    assert sent["thinker"].token_ids == [1, 2]


def test_the_adapter_is_given_each_messages_clips(tmp_path: Path) -> None:
    made = intake(tmp_path)
    earlier = [
        {"role": "user", "content": "one", "audio": [LOUD]},
        {"role": "assistant", "content": "four"},
    ]
    for request, prompt in (
        (OmniRequest(text="hi", audio=[QUIET]), Prompt([2], (QUIET,))),
        (OmniRequest(text="hi", messages=earlier), Prompt([3, 4, 2], (LOUD,))),
        (OmniRequest(audio=(QUIET,), messages=earlier), Prompt([3, 4, 0], (LOUD, QUIET))),
    ):
        assert made.prompts(request, request.check(HEARING)) == [prompt]


def test_a_sound_needs_no_text() -> None:
    OmniRequest(audio=[LOUD]).check(HEARING)
    OmniRequest(messages=[{"role": "user", "content": "", "audio": [LOUD]}]).check(HEARING)
    with pytest.raises(EmptyInputError):
        OmniRequest(messages=[{"role": "user", "content": "", "audio": []}]).check(HEARING)


@pytest.mark.parametrize(
    "given",
    [
        {"audio": [LOUD]},
        {"messages": [{"role": "user", "content": "hi", "audio": [LOUD]}]},
    ],
)
def test_an_entry_that_takes_no_audio(given: dict[str, object]) -> None:
    """Nothing has to be loaded to know."""
    with pytest.raises(InvalidRequestError, match="entry chat of pipeline sample takes no audio"):
        OmniRequest(text="hi", **given).check(TOPOLOGY)  # type: ignore[arg-type]
    request = OmniRequest(entry="speech", text="hi", modalities=("audio",), **given)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="entry speech of pipeline sample takes no audio"):
        request.check(HEARING)


WRONG = {
    "a path": ({"audio": ["x.wav"]}, r"audio: expected object, got str"),
    "one clip": ({"audio": LOUD}, "audio: expected array"),
    "too many": ({"audio": [LOUD] * 17}, "has 17 clips; give at most 16"),
    "an answer that sounds": (
        {"messages": [{"role": "assistant", "content": "hi", "audio": [LOUD]}]},
        "message 0 has audio, but is the assistant's; entry chat takes text and audio:",
    ),
    "text as audio": (
        {"messages": [{"role": "user", "content": "hi", "audio": "x.wav"}]},
        "message 0 has audio of type str, not a list of AudioClip",
    ),
    "paths as audio": (
        {"messages": [{"role": "user", "content": "hi", "audio": ["x.wav"]}]},
        "message 0 has audio that is no AudioClip",
    ),
    "nothing as audio": (
        {"messages": [{"role": "user", "content": "hi", "audio": None}]},
        "message 0 has audio of type NoneType",
    ),
    "audio as text": (
        {"messages": [{"role": "user", "content": [LOUD]}]},
        "message 0 has content of type list; .* the text as content, clips as a user's audio$",
    ),
    "another key": (
        {"messages": [{"role": "user", "content": "hi", "image": "x"}]},
        "message 0 has 'image', which is unknown; entry chat takes text and audio:",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_refused(case: str) -> None:
    given, message = WRONG[case]
    with pytest.raises(InvalidRequestError, match=message):
        OmniRequest(text="hi", **given).check(HEARING)  # type: ignore[arg-type]


def test_the_clips_of_a_request_are_bounded_together() -> None:
    clip = AudioClip.from_array(np.zeros(4000 * 301, np.int16), 4000)
    OmniRequest(audio=[clip]).check(HEARING)
    earlier = [{"role": "user", "content": "hi", "audio": [clip]}]
    with pytest.raises(InputTooLongError, match="602 s of audio; give at most 600 s"):
        OmniRequest(audio=[clip], messages=earlier).check(HEARING)


def test_a_session_takes_no_audio(tmp_path: Path) -> None:
    made = intake(tmp_path)
    request = OmniRequest(messages=[{"role": "user", "content": "hi", "audio": [LOUD]}])
    path = request.check_options(HEARING)
    for refuse in (made.check_session, made.opening):
        with pytest.raises(InvalidRequestError, match="a session takes no audio"):
            refuse(request, path)
    assert made.opening(OmniRequest(text="four"), path) == [4]


def test_topologies_say_what_their_entries_take() -> None:
    with pytest.raises(TopologyError, match="entry chat takes 'smell'; entries take text"):
        replace(TOPOLOGY, entries=(replace(CHAT, inputs=("smell",)), SAY))
    wave_ = Entry("wave", "code2wav", "sample:Wave", inputs=("audio",))
    with pytest.raises(TopologyError, match="starts at code2wav, a generation stage"):
        replace(TOPOLOGY, entries=(CHAT, SAY, wave_))
    assert [name for name in TOPOLOGY.stage_names if HEARING.hears(name)] == ["thinker"]
