"""The adapters at the pipeline's edges, with the thinker's real tokenizer."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from antiphon.core.prompt_plan import validate_plan
from antiphon.errors import AdapterError
from antiphon.models.voice import phonemes, weights
from antiphon.models.voice.adapters import (
    CODES,
    CodeCollector,
    CodesInput,
    Speaker,
    SpeakInput,
    SpeakOutput,
    payload_text,
    text_payload,
)
from antiphon.models.voice.limits import CODE2WAV_CONTEXT, TALKER_CONTEXT
from antiphon.models.voice.text import has_words, split_sentences
from antiphon.models.voice.vocabulary import FIRST_CODE, NUM_CODES, VOCAB_SIZE
from antiphon.payload.adapters import StageContext
from antiphon.payload.ref import Layout
from antiphon.payload.types import Payload, per_token

ANSWER = "Sure! Mr. Smith paid $3.50, didn't he? 🙂 Yes — “really”.\n\n1. Café\n2. Tea"


@pytest.fixture(scope="module")
def speak() -> SpeakOutput:
    """The thinker's end of the edge `speak`."""
    return SpeakOutput(StageContext("thinker", "speak", str(weights.thinker_checkpoint()), {}))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """The thinker's tokenizer."""
    return Tokenizer.from_file(str(weights.thinker_checkpoint() / "tokenizer.json"))


def context(stage: str, edge: str) -> StageContext:
    return StageContext(stage, edge, "", {})


def spoken(speaker: Speaker, steps: list[list[int]]) -> list[str]:
    """The texts of all payloads when the tokens arrive in these steps."""
    payloads = [payload for step in steps for payload in speaker.on_tokens(step)]
    return [payload_text(payload) for payload in [*payloads, *speaker.on_end()]]


def test_sentences_come_out_of_tokens(speak: SpeakOutput, tokenizer: Tokenizer) -> None:
    """One token per step gives the sentences of the text; what has no word is left out."""
    ids = tokenizer.encode(ANSWER).ids
    texts = spoken(speak.open("u", {}), [[token] for token in ids])
    assert texts == [part for part in split_sentences(ANSWER) if has_words(part)]


def test_first_sentence_goes_out_before_the_end(speak: SpeakOutput, tokenizer: Tokenizer) -> None:
    """The talker starts while the thinker writes."""
    speaker = speak.open("u", {})
    (first,) = speaker.on_tokens(tokenizer.encode("It rains. So").ids)
    assert payload_text(first) == "It rains."
    assert first.fields["text"].layout is Layout.PER_REQUEST


def test_special_tokens_are_not_spoken(speak: SpeakOutput, tokenizer: Tokenizer) -> None:
    """The end-of-turn token is no text."""
    ids = [*tokenizer.encode("Hello").ids, tokenizer.token_to_id("<|im_end|>")]
    assert spoken(speak.open("u", {}), [ids]) == ["Hello"]


def test_nothing_but_emoji_sends_nothing(speak: SpeakOutput, tokenizer: Tokenizer) -> None:
    """An answer without a word ends the edge empty."""
    assert spoken(speak.open("u", {}), [tokenizer.encode("🙂🙂 ...").ids]) == []


@given(ids=st.lists(st.integers(0, 49_151), max_size=40), data=st.data())
def test_any_tokens_in_any_steps_give_the_same_parts(
    speak: SpeakOutput, ids: list[int], data: st.DataObject
) -> None:
    """Steps of several tokens, and token sequences that are no valid UTF-8."""
    cut = data.draw(st.integers(0, len(ids)))
    one_by_one = spoken(speak.open("u", {}), [[token] for token in ids])
    assert spoken(speak.open("v", {}), [ids[:cut], ids[cut:]]) == one_by_one


def test_requests_do_not_share_text(speak: SpeakOutput, tokenizer: Tokenizer) -> None:
    """Two requests through one factory."""
    first, second = speak.open("a", {}), speak.open("b", {})
    first.on_tokens(tokenizer.encode("One").ids)
    second.on_tokens(tokenizer.encode("Two").ids)
    assert [payload_text(p) for p in first.on_end()] == ["One"]
    assert [payload_text(p) for p in second.on_end()] == ["Two"]


def test_sentence_becomes_the_talkers_prompt() -> None:
    """The plan is what the speech entry would make of the same text."""
    plan = SpeakInput(context("talker", "speak")).plan("u", text_payload("Hi there, you."), {})
    assert [list(plan.token_ids)] == phonemes.prompts("Hi there, you.")
    assert validate_plan(plan, TALKER_CONTEXT, None, VOCAB_SIZE) > 0


def test_text_without_sound_is_a_pause() -> None:
    """A part that turns out empty must not fail the whole answer."""
    plan = SpeakInput(context("talker", "speak")).plan("u", text_payload("🙂"), {})
    assert list(plan.token_ids) == phonemes.prompt([])


def test_text_that_cannot_fit_is_an_error() -> None:
    """Parts are cut by the producer; one that was not is refused, not cut off."""
    with pytest.raises(AdapterError, match="too long"):
        SpeakInput(context("talker", "speak")).plan("u", text_payload("word " * 100), {})


def test_codes_are_collected_without_phonemes() -> None:
    """One payload at the end: codes counted from 0, one row each."""
    collector = CodeCollector()
    assert collector.on_tokens([184, FIRST_CODE, FIRST_CODE + 5]) == []
    assert collector.on_tokens([50, FIRST_CODE + 2047, 180]) == []
    (payload,) = collector.on_end()
    assert payload.fields[CODES].layout is Layout.PER_TOKEN
    assert payload.fields[CODES].tensor.dtype == torch.int32
    assert payload.fields[CODES].tensor.tolist() == [0, 5, 2047]


def test_no_codes_send_nothing() -> None:
    """A talker that said nothing ends the edge empty."""
    collector = CodeCollector()
    collector.on_tokens([184, 180])
    assert collector.on_end() == []


def test_codes_become_the_prompt() -> None:
    """A code is a token of code2wav."""
    payload = Payload({CODES: per_token(torch.tensor([3, 1, 2], dtype=torch.int32))})
    plan = CodesInput(context("code2wav", "codes")).plan("u", payload, {})
    assert plan.token_ids == (3, 1, 2)
    assert validate_plan(plan, CODE2WAV_CONTEXT, 0, NUM_CODES) >= 0


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([NUM_CODES], dtype=torch.int32),
        torch.tensor([-1], dtype=torch.int32),
        torch.tensor([], dtype=torch.int32),
        torch.tensor([1], dtype=torch.int64),
        torch.tensor([[1]], dtype=torch.int32),
    ],
)
def test_wrong_codes_are_an_error(tensor: torch.Tensor) -> None:
    """Ids that code2wav does not have, and tensors of another kind."""
    payload = Payload({CODES: per_token(tensor)})
    with pytest.raises(AdapterError):
        CodesInput(context("code2wav", "codes")).plan("u", payload, {})


def test_missing_field_is_an_error() -> None:
    """AR-INV-002: a payload that lacks what its edge declares."""
    with pytest.raises(AdapterError, match="'codes'"):
        CodesInput(context("code2wav", "codes")).plan("u", text_payload("x"), {})
