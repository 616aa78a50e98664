"""The adapters at the pipeline's edges, with the thinker's real tokenizer."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from antiphon.core.prompt_plan import PromptPlan, validate_plan
from antiphon.errors import AdapterError, TopologyError
from antiphon.models.code_windows import FIRST, LEFT, RIGHT
from antiphon.models.voice import phonemes, weights
from antiphon.models.voice.adapters import (
    CODES,
    CodesInput,
    CodesOutput,
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
from antiphon.payload.types import Payload, Scalar, per_token

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


def planned(adapter: SpeakInput | CodesInput, payload: Payload) -> PromptPlan:
    made = adapter.open("u", {}).on_payload(payload, last=True)
    assert made.plan is not None
    return made.plan


def test_sentence_becomes_the_talkers_prompt() -> None:
    """The plan is what the speech entry would make of the same text."""
    plan = planned(SpeakInput(context("talker", "speak")), text_payload("Hi there, you."))
    assert [list(plan.token_ids)] == phonemes.prompts("Hi there, you.")
    validate_plan(plan, TALKER_CONTEXT, None, VOCAB_SIZE)


def test_text_without_sound_is_a_pause() -> None:
    """A part that turns out empty must not fail the whole answer."""
    plan = planned(SpeakInput(context("talker", "speak")), text_payload("🙂"))
    assert list(plan.token_ids) == phonemes.prompt([])


def test_text_that_cannot_fit_is_an_error() -> None:
    """Parts are cut by the producer; one that was not is refused, not cut off."""
    with pytest.raises(AdapterError, match="too long"):
        planned(SpeakInput(context("talker", "speak")), text_payload("word " * 100))


FRAMES = {
    "initial_frames": 2,
    "steady_frames": 4,
    "frame_ramp": 2.0,
    "left_context": 3,
    "right_context": 1,
}


def codes_output(*, stream: bool) -> CodesOutput:
    return CodesOutput(StageContext("talker", "codes", "", FRAMES, stream))


def test_on_a_full_edge_codes_are_one_payload() -> None:
    """Codes counted from 0, one row each, without the phonemes between them."""
    windows = codes_output(stream=False).open("u", {})
    assert windows.on_tokens([184, FIRST_CODE, FIRST_CODE + 5]) == []
    assert windows.on_tokens([50, FIRST_CODE + 2047, 180]) == []
    (payload,) = windows.on_end()
    assert payload.fields[CODES].layout is Layout.PER_TOKEN
    assert payload.fields[CODES].tensor.dtype == torch.int32
    assert payload.fields[CODES].tensor.tolist() == [0, 5, 2047]
    assert (payload.meta[FIRST], payload.meta[LEFT], payload.meta[RIGHT]) == (0, 0, 0)


def test_on_a_stream_edge_codes_leave_in_windows_with_their_context() -> None:
    windows = codes_output(stream=True).open("u", {})
    made = [p for code in range(9) for p in windows.on_tokens([40, FIRST_CODE + code])]
    made += windows.on_end()
    found = [(p.fields[CODES].tensor.tolist(), *p.meta.values()) for p in made]
    assert found == [
        ([0, 1, 2], 0, 0, 1),
        ([0, 1, 2, 3, 4, 5, 6], 2, 2, 1),
        ([3, 4, 5, 6, 7, 8], 6, 3, 0),
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_no_codes_send_nothing(stream: bool) -> None:
    """A talker that said nothing ends the edge empty."""
    windows = codes_output(stream=stream).open("u", {})
    windows.on_tokens([184, 180])
    assert windows.on_end() == []


def test_wrong_frame_sizes_are_the_authors_error() -> None:
    with pytest.raises(TopologyError, match="edge codes: initial_frames"):
        CodesOutput(StageContext("talker", "codes", "", {"initial_frames": 0}, True))


def test_a_window_of_codes_becomes_the_prompt() -> None:
    """A code is a token of code2wav; where the window lies goes to its model."""
    tensor = torch.tensor([3, 1, 2], dtype=torch.int32)
    payload = Payload({CODES: per_token(tensor)}, {FIRST: 7, LEFT: 1, RIGHT: 1})
    plan = planned(CodesInput(context("code2wav", "codes")), payload)
    assert plan.token_ids == (3, 1, 2)
    assert plan.extra == {FIRST: 7, LEFT: 1, RIGHT: 1}
    validate_plan(plan, CODE2WAV_CONTEXT, 0, NUM_CODES)


@pytest.mark.parametrize("meta", [{LEFT: 4, FIRST: 4}, {LEFT: 1}, {FIRST: "x"}, {RIGHT: -1}])
def test_a_window_that_cannot_be_is_an_error(meta: dict[str, Scalar]) -> None:
    """C64: refused for its own request, before it could end a whole step."""
    payload = Payload({CODES: per_token(torch.tensor([3, 1, 2], dtype=torch.int32))}, meta)
    with pytest.raises(AdapterError):
        planned(CodesInput(context("code2wav", "codes")), payload)


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
    with pytest.raises(AdapterError):
        planned(CodesInput(context("code2wav", "codes")), Payload({CODES: per_token(tensor)}))


def test_missing_field_is_an_error() -> None:
    """AR-INV-002: a payload that lacks what its edge declares."""
    with pytest.raises(AdapterError, match="'codes'"):
        planned(CodesInput(context("code2wav", "codes")), text_payload("x"))
