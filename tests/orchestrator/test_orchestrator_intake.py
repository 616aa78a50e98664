"""What a request needs before a stage sees it, and what of the pipeline was not started."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from antiphon.errors import AdapterError, InvalidRequestError, TopologyError
from antiphon.orchestrator.api import OmniRequest
from antiphon.orchestrator.intake import Intake
from antiphon.pipeline.entry import EntryRequest
from antiphon.pipeline.topology import Ear, Entry
from heard_pipeline import CLIP, HEARD, HEARD_CHAT, WRITE_DOWN
from routing import word_tokenizer
from sample_pipeline import TOPOLOGY

ALL = ("thinker", "talker", "code2wav")


class Letters:
    """One prompt: the length of each text."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint

    def prompts(self, request: EntryRequest) -> list[list[int]]:
        return [[len(request.text), *(len(message.content) for message in request.messages)]]


class Talkative(Letters):
    """Goes on where an answer ended. A text of several lines is one prompt each."""

    def prompts(self, request: EntryRequest) -> list[list[int]]:
        return super().prompts(request) * (request.text.count("\n") + 1)

    def continuation(self, text: str) -> list[int]:
        return [-len(text)]


def intake(
    folder: Path,
    stages: tuple[str, ...] = ALL,
    entries: tuple[str, ...] | None = None,
    adapter: type = Letters,
) -> Intake:
    word_tokenizer().save(str(folder / "tokenizer.json"))
    name = f"{__name__}:{adapter.__name__}"
    topology = replace(
        TOPOLOGY,
        entries=(
            Entry("chat", "thinker", name),
            Entry("speech", "talker", name),
            Entry("raw", "code2wav", name),
        ),
    )
    return Intake(topology, {stage: str(folder) for stage in stages}, entries)


def prompts(made: Intake, request: OmniRequest) -> list[list[int]]:
    return made.prompts(request, request.check(TOPOLOGY))


def test_a_text_alone_or_a_conversation_that_ends_with_it(tmp_path: Path) -> None:
    made = intake(tmp_path)
    assert prompts(made, OmniRequest(text="four")) == [[4]]
    earlier = [{"role": "system", "content": "be kind"}]
    assert prompts(made, OmniRequest(text="four", messages=earlier)) == [[0, 7, 4]]


def test_an_entry_that_was_left_out_is_refused(tmp_path: Path) -> None:
    """Not a KeyError: `Omni(entries=("chat",)).say(...)` is the caller's mistake."""
    made = intake(tmp_path, entries=("chat",))
    with pytest.raises(InvalidRequestError, match="entry speech was not started"):
        prompts(made, OmniRequest(entry="speech", text="hi", modalities=("audio",)))


def test_a_stage_that_was_left_out_is_refused(tmp_path: Path) -> None:
    made = intake(tmp_path, stages=("thinker",))
    with pytest.raises(InvalidRequestError, match="stage talker was not started"):
        prompts(made, OmniRequest(text="hi"))
    assert prompts(made, OmniRequest(text="hi", modalities=("text",))) == [[2]]


def test_text_is_given_to_those_who_ask_for_it(tmp_path: Path) -> None:
    made = intake(tmp_path)
    for modalities, text in ((("text", "audio"), "one"), (("audio",), None)):
        request = OmniRequest(text="hi", modalities=modalities)
        found = made.detokenizer(request, request.check(TOPOLOGY))
        assert (None if found is None else found.feed([1])) == text


def test_an_adapter_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="sample:Chat"):
        Intake(TOPOLOGY, {"thinker": str(tmp_path)}, None)


def test_a_session_is_opened_and_goes_on(tmp_path: Path) -> None:
    made = intake(tmp_path, adapter=Talkative)
    request = OmniRequest(text="four")
    path = request.check(TOPOLOGY)
    made.check_session(request, path)
    assert made.opening(request, path) == [4]
    assert made.continuation(request, path) == [-4]


def test_an_entry_that_continues_no_conversation_holds_no_session(tmp_path: Path) -> None:
    request = OmniRequest(text="four")
    with pytest.raises(InvalidRequestError, match="entry chat holds no session"):
        intake(tmp_path).check_session(request, request.check(TOPOLOGY))


def test_a_session_enters_at_an_ar_stage(tmp_path: Path) -> None:
    made = intake(tmp_path, adapter=Talkative)
    request = OmniRequest(entry="raw", modalities=("audio",))
    with pytest.raises(InvalidRequestError, match="code2wav, a generation stage"):
        made.check_session(request, (TOPOLOGY.stage("code2wav"),))


def test_a_session_begins_with_one_prompt(tmp_path: Path) -> None:
    request = OmniRequest(text="two\nlines")
    with pytest.raises(AdapterError, match="2 prompts"):
        intake(tmp_path, adapter=Talkative).opening(request, request.check(TOPOLOGY))


def test_a_session_that_needs_what_was_left_out_is_refused(tmp_path: Path) -> None:
    made = intake(tmp_path, stages=("thinker",), adapter=Talkative)
    request = OmniRequest()
    with pytest.raises(InvalidRequestError, match="stage talker was not started"):
        made.check_session(request, request.check_options(TOPOLOGY))


# --- ears -----------------------------------------------------------------------------------------


class Sounds(Letters):
    """One prompt for each clip."""

    def prompts(self, request: EntryRequest) -> list[list[int]]:
        return [[-1] for _ in request.audio]


def heard_intake(folder: Path, *stages: str) -> Intake:
    word_tokenizer().save(str(folder / "tokenizer.json"))
    letters, sounds = f"{__name__}:Letters", f"{__name__}:Sounds"
    chat = replace(HEARD_CHAT, adapter=letters, ear=Ear("ear", sounds))
    topology = replace(HEARD, entries=(chat, replace(WRITE_DOWN, adapter=sounds)))
    return Intake(topology, {stage: str(folder) for stage in stages}, None)


def test_requests_with_sound_have_an_adapter_of_their_own(tmp_path: Path) -> None:
    made = heard_intake(tmp_path, "ear", *ALL)
    for request, expected in (
        (OmniRequest(text="four"), [[4]]),
        (OmniRequest(text="four", audio=[CLIP, CLIP]), [[-1], [-1]]),
        (OmniRequest(entry="transcribe", audio=[CLIP]), [[-1]]),
    ):
        assert made.prompts(request, request.check(HEARD)) == expected


def test_an_ear_that_was_left_out_is_refused(tmp_path: Path) -> None:
    made = heard_intake(tmp_path, *ALL)
    request = OmniRequest(audio=[CLIP])
    with pytest.raises(
        InvalidRequestError, match=r"stage ear was not started.*modalities and inputs"
    ):
        made.prompts(request, request.check(HEARD))


@pytest.mark.parametrize(
    ("entry", "modalities", "answers"),
    [
        ("chat", None, None),
        ("chat", ("audio",), None),
        ("chat", ("text", "transcript"), False),
        ("chat", ("audio", "transcript"), False),
        ("chat", ("transcript",), True),
        ("transcribe", None, True),
    ],
)
def test_a_transcript_is_made_for_those_who_ask_for_it(
    tmp_path: Path, entry: str, modalities: tuple[str, ...] | None, answers: bool | None
) -> None:
    made = heard_intake(tmp_path, "ear", *ALL)
    request = OmniRequest(entry=entry, audio=[CLIP], modalities=modalities)
    found = made.transcript(request, request.check(HEARD))
    assert (None if found is None else found.answers) == answers
    if found is not None:
        assert found.on_tokens(0, [1, 2]) == "one two"


def test_a_session_takes_no_sound(tmp_path: Path) -> None:
    made = heard_intake(tmp_path, "ear", *ALL)
    request = OmniRequest(text="hi", audio=[CLIP])
    with pytest.raises(InvalidRequestError, match="make requests"):
        made.check_session(request, request.check(HEARD))
