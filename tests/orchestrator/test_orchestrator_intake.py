"""What a request needs before a stage sees it, and what was left out of the pipeline's start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from antiphon.errors import InvalidRequestError, TopologyError
from antiphon.orchestrator.api import OmniRequest
from antiphon.orchestrator.intake import Intake
from antiphon.pipeline.entry import EntryRequest
from antiphon.pipeline.topology import Entry
from routing import word_tokenizer
from sample_pipeline import TOPOLOGY

ALL = ("thinker", "talker", "code2wav")


class Letters:
    """One prompt: the length of each text."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint

    def prompts(self, request: EntryRequest) -> list[list[int]]:
        return [[len(request.text), *(len(message.content) for message in request.messages)]]


def intake(
    folder: Path, stages: tuple[str, ...] = ALL, entries: tuple[str, ...] | None = None
) -> Intake:
    word_tokenizer().save(str(folder / "tokenizer.json"))
    adapter = f"{__name__}:Letters"
    topology = replace(
        TOPOLOGY, entries=(Entry("chat", "thinker", adapter), Entry("speech", "talker", adapter))
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
    with pytest.raises(InvalidRequestError, match="entry speech was left out"):
        prompts(made, OmniRequest(entry="speech", text="hi", modalities=("audio",)))


def test_a_stage_that_was_left_out_is_refused(tmp_path: Path) -> None:
    made = intake(tmp_path, stages=("thinker",))
    with pytest.raises(InvalidRequestError, match="stage talker was left out"):
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
