"""What hearing is given, and what of it reaches the thinker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import (
    AdapterError,
    EmptyInputError,
    InputTooLongError,
    InvalidRequestError,
    ModelUnavailableError,
)
from antiphon.models.voice import weights
from antiphon.models.voice.dialogue import Conversation, HeardMessage
from antiphon.models.voice.entries import (
    CONVERSATION,
    ChatEntry,
    HeardChatEntry,
    TranscribeEntry,
    start_token,
)
from antiphon.models.voice.hear_adapters import HearInput, HearOutput
from antiphon.models.voice.topology import TOPOLOGY
from antiphon.payload.adapters import Input, StageContext
from antiphon.payload.types import Payload, per_request
from antiphon.pipeline.audio import AudioClip
from antiphon.pipeline.detokenize import load_tokenizer
from antiphon.pipeline.entry import EntryRequest, Message, Prompt
from antiphon.pipeline.wanted import stages_wanted

START = 50257
SHORT = AudioClip(bytes(16_000), 8_000)
LONG = AudioClip(bytes(16_000 * 70), 8_000)  # 70 s


class Ends:
    """Entries, and both ends of the edge, with the real tokenizers."""

    def __init__(self) -> None:
        hearing, thinker = weights.hearing_checkpoint(), weights.thinker_checkpoint()
        self.tokenizer = load_tokenizer(hearing)
        self.output = HearOutput(context(hearing))
        self.input = HearInput(context(thinker))
        self.ear, self.down = HeardChatEntry(hearing), TranscribeEntry(hearing)
        self.chat = ChatEntry(thinker)


@pytest.fixture(scope="module")
def ends() -> Ends:
    return Ends()


def context(folder: Path) -> StageContext:
    return StageContext(stage="s", edge="hear", model=str(folder), options={})


def heard(ends: Ends, prompts: Sequence[Prompt], texts: Sequence[str]) -> Input:
    """The thinker's input when each prompt's sound says its text."""
    thinker = ends.input.open("r.0", {})
    made = Input()
    for index, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        of = ends.output.open(f"r.{index}", prompt.params)
        ids = ends.tokenizer.encode(text, add_special_tokens=False).ids
        assert not of.on_tokens([50362, *ids])
        assert not of.on_tokens([50256])
        (payload,) = of.on_end()
        assert made == Input()  # nothing before the last
        made = thinker.on_payload(payload, last=index == len(texts) - 1)
    return made


def plan(made: Input) -> list[int]:
    assert made.plan is not None
    return list(made.plan.token_ids)


def test_a_question_that_is_heard_is_one_that_is_written(ends: Ends) -> None:
    prompts = ends.ear.prompts(EntryRequest(audio=(SHORT,)))
    assert [(p.token_ids, p.audio) for p in prompts] == [([START], (SHORT,))]
    made = heard(ends, prompts, [" What is the capital of France?"])
    written = EntryRequest(text="What is the capital of France?")
    assert [plan(made)] == ends.chat.prompts(written)


def test_a_conversation_with_sounds_in_several_places(ends: Ends) -> None:
    """Each sound's words stand before the text of its own message; a long one has windows."""
    messages = (
        Message("system", "Be brief."),
        Message("user", "And you?", (SHORT, LONG)),
        Message("assistant", "I am well."),
        Message("user", "", (SHORT,)),
    )
    prompts = ends.ear.prompts(EntryRequest(messages=messages))
    assert len(prompts) == 1 + 3 + 1
    assert [CONVERSATION in prompt.params for prompt in prompts] == [True, *[False] * 4]
    made = heard(ends, prompts, [" One.", " Two", "", " three.", " Four?"])
    written = (
        messages[0],
        Message("user", "One. Two three.\nAnd you?"),
        messages[2],
        Message("user", "Four?"),
    )
    assert [plan(made)] == ends.chat.prompts(EntryRequest(messages=written))


def test_silence_with_a_text_is_the_text(ends: Ends) -> None:
    request = EntryRequest(text="Who are you?", audio=(SHORT,))
    prompts = ends.ear.prompts(request)
    alone = ends.chat.prompts(EntryRequest(text="Who are you?"))
    assert [plan(heard(ends, prompts, [""]))] == alone


def test_silence_alone_is_the_callers_error(ends: Ends) -> None:
    prompts = ends.ear.prompts(EntryRequest(audio=(LONG,)))
    with pytest.raises(EmptyInputError, match="nothing was heard"):
        heard(ends, prompts, ["", " ", ""])


def test_more_than_the_thinker_takes(ends: Ends) -> None:
    prompts = ends.ear.prompts(EntryRequest(audio=(SHORT,)))
    with pytest.raises(InputTooLongError, match="shorten it"):
        heard(ends, prompts, [" word" * 2000])


def test_hearing_is_started_for_those_who_may_need_it() -> None:
    """`antiphon chat` without a sound and `antiphon say` do without."""

    def started(**limits: Sequence[str]) -> list[str]:
        return [stage.name for stage in stages_wanted(TOPOLOGY, **limits)]

    speaking = ["talker", "code2wav"]
    assert started() == ["hearing", "thinker", *speaking]
    assert started(entries=["chat"], inputs=["text"]) == ["thinker", *speaking]
    assert started(entries=["speech"]) == speaking
    assert started(entries=["transcribe"]) == ["hearing"]


def test_sounds_that_are_only_written_down(ends: Ends) -> None:
    assert ends.down.prompts(EntryRequest(audio=(SHORT,))) == [Prompt([START], (SHORT,))]
    turns = (Message("user", "", (SHORT, LONG)), Message("user", "", (SHORT,)))
    assert len(ends.down.prompts(EntryRequest(messages=turns))) == 5


def test_payloads_of_others_are_refused(ends: Ends) -> None:
    bytes_of = {"text": b"hi", CONVERSATION: b"{}"}
    fields = {
        name: per_request(torch.from_numpy(np.frombuffer(raw, np.uint8).copy()))
        for name, raw in bytes_of.items()
    }
    for wrong in (
        Payload({"text": fields["text"]}),
        Payload(fields),
        Payload({**fields, "text": per_request(torch.zeros(2))}),
    ):
        with pytest.raises(AdapterError):
            ends.input.open("r.0", {}).on_payload(wrong, last=True)
    with pytest.raises(AdapterError, match="brought nothing"):
        ends.input.open("r.0", {}).on_end()


def test_a_checkpoint_that_is_no_whisper(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("{}")
    with pytest.raises(ModelUnavailableError, match="give a checkpoint of Whisper"):
        start_token(tmp_path)


texts = st.text(st.characters(codec="utf-8"), max_size=20)


@given(st.lists(st.tuples(st.sampled_from(("system", "user", "assistant")), texts), max_size=4))
def test_a_conversation_crosses_as_it_is(turns: list[tuple[str, str]]) -> None:
    given = Conversation(tuple(HeardMessage(role, text) for role, text in turns))
    assert Conversation.from_json(given.to_json()) == given
    back = given.with_transcripts(())
    assert [(m.role, m.content) for m in back] == [(r, text.strip()) for r, text in turns]


def test_transcripts_have_to_fit_their_windows() -> None:
    given = Conversation((HeardMessage("user", "", 2),))
    with pytest.raises(AdapterError, match="1 transcripts have come for 2 windows"):
        given.with_transcripts(("one",))


def test_a_transcription_is_of_english(ends: Ends) -> None:
    """OpenAI's clients often say which language they speak."""
    told = EntryRequest(audio=(SHORT,), params={"language": "en"})
    assert ends.down.prompts(told) == ends.down.prompts(EntryRequest(audio=(SHORT,)))
    with pytest.raises(InvalidRequestError, match="'de'; this model hears English alone"):
        ends.down.prompts(EntryRequest(audio=(SHORT,), params={"language": "de"}))
