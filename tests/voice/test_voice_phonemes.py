"""Text becomes prompts of the talker's form, whatever the text is."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from antiphon.models.voice import phonemes
from antiphon.models.voice.text import normalise
from antiphon.models.voice.vocabulary import BOS, FIRST_MARK, NUM_MARKS, PAD, SEP, SPACE


def test_prompt_of_a_sentence() -> None:
    """BOS, mark, phonemes with the next mark for each space, pad, SEP."""
    (ids,) = phonemes.prompts("Hi there, you.")
    assert ids == [BOS, 184, 50, 156, 25, 185, 81, 156, 86, 123, 3, 186, 52, 63, 4, PAD, SEP]


@pytest.mark.parametrize("text", ["", " ", "🙂", "...", "—", "* *", "\u200b", "()"])
def test_nothing_speakable_gives_no_prompt(text: str) -> None:
    """only emoji or punctuation is empty, not a prompt of silence."""
    assert phonemes.prompts(normalise(text)) == []


@given(st.lists(st.lists(st.integers(24, 148), min_size=1, max_size=450), min_size=1, max_size=200))
def test_long_texts_become_several_prompts(words: list[list[int]]) -> None:
    """Word marks never overflow, no part is too long, no phoneme is lost."""
    ids = [phoneme for word in words for phoneme in (SPACE, *word)][1:]
    parts = list(phonemes._parts(ids))
    for part in parts:
        prompt = phonemes.prompt(part)
        assert len(part) <= phonemes.PART_PHONEMES
        assert max(prompt) < FIRST_MARK + NUM_MARKS
        assert prompt[1] == FIRST_MARK
    kept = [phoneme for part in parts for phoneme in part if phoneme != SPACE]
    assert kept == [phoneme for phoneme in ids if phoneme != SPACE]


def test_marks_count_the_words() -> None:
    """Each word of a prompt has a mark of its own."""
    ids = phonemes.phoneme_ids(normalise(" ".join(["a"] * NUM_MARKS)))
    marks = [token for token in phonemes.prompt(ids) if token >= FIRST_MARK]
    assert marks == list(range(FIRST_MARK, FIRST_MARK + NUM_MARKS))


@settings(deadline=None)  # the library's tables are loaded by the first example
@given(st.text(max_size=80))
@example("<¹")
def test_any_text_can_be_read(text: str) -> None:
    """The library reads whatever text there is, once it is normalised; ids are its own."""
    for prompt in phonemes.prompts(normalise(text)):
        assert prompt[0] == BOS
        assert prompt[-2:] == [PAD, SEP]
        assert all(0 < token < FIRST_MARK + NUM_MARKS for token in prompt[:-2])


def test_endless_number_is_read() -> None:
    """The library raises on numbers of more than 66 digits; normalised text has none."""
    assert phonemes.prompts(normalise("7" * 100))


def test_a_word_of_endless_parts_is_read_as_words() -> None:
    """The library would take minutes for a page of them."""
    assert phonemes.phoneme_ids("a-" * 50 + "a") == phonemes.phoneme_ids("a " * 50 + "a")
    assert phonemes.phoneme_ids("well-known") != phonemes.phoneme_ids("well known")
