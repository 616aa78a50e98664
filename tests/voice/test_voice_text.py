"""Text is cut into parts that can be spoken, the same ones however the text arrives."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.models.voice import phonemes
from antiphon.models.voice.text import (
    HARD_LIMIT,
    SentenceStream,
    has_words,
    normalise,
    split_sentences,
)
from antiphon.models.voice.words import MAX_WORD, spoken_length

# Pieces that meet at every rule: ends, abbreviations, numbers, Markdown, line breaks, odd signs.
_PIECES = st.sampled_from(
    [
        "Hello", "there", "the", "quick", "I", "NASA", "www.example.org", "Mr.", "e.g.", "etc.",
        "U.S.", "3.14", "1,000,000", "7", "12.", "1990s", "$9.99", "50%", "J.", "...", "…", ".",
        "!", "?", ",", ";", ":", "—", '"', "”", "(", ")", "**", "*", "#", "-", "_", "`", "```",
        "[link](http://x.y)", "[", "](", "\n", "\n\n", " ", "  ", "\t", "🙂", "中文", "é",
        "\u200b", "x" * 150, "7" * 80,
    ]
)  # fmt: skip
_TEXTS = st.one_of(
    st.text(max_size=200),
    st.lists(_PIECES, max_size=60).map(" ".join),
    st.lists(_PIECES, max_size=60).map("".join),
)


@given(_TEXTS)
def test_parts_joined_are_the_normalised_text(text: str) -> None:
    """nothing is lost, doubled or reordered by splitting."""
    assert " ".join(split_sentences(text)) == normalise(text)


@given(_TEXTS)
def test_char_by_char_gives_the_same_parts(text: str) -> None:
    """The parts do not depend on how the text was cut into tokens."""
    stream = SentenceStream()
    parts = [part for char in text for part in stream.feed(char)]
    assert parts + stream.flush() == split_sentences(text)


@given(_TEXTS, st.data())
def test_any_pieces_give_the_same_parts(text: str, data: st.DataObject) -> None:
    """As above, for pieces of any length."""
    cut = data.draw(st.integers(0, len(text)))
    stream = SentenceStream()
    parts = stream.feed(text[:cut]) + stream.feed(text[cut:]) + stream.flush()
    assert parts == split_sentences(text)


@settings(deadline=None)  # the library's tables are loaded by the first example
@given(_TEXTS)
def test_every_part_fits_the_talker(text: str) -> None:
    """no part needs more positions or word marks than the talker has."""
    for part in split_sentences(text):
        ids = phonemes.phoneme_ids(part)
        assert len(ids) <= phonemes.MAX_PHONEMES
        assert ids.count(phonemes.SPACE) < phonemes.MAX_WORDS


@given(_TEXTS)
def test_words_and_parts_are_bounded(text: str) -> None:
    """No word is longer than the library can read, no part longer than its limit plus one word."""
    for part in split_sentences(text):
        lengths = [spoken_length(word) for word in part.split()]
        assert all(length <= MAX_WORD for length in lengths)
        assert sum(lengths) + len(lengths) <= HARD_LIMIT + 1


@given(_TEXTS)
def test_normalising_twice_changes_nothing_spoken(text: str) -> None:
    """Adapters normalise again what may have been normalised already; no whitespace creeps in."""
    once = normalise(text)
    assert once == " ".join(once.split())


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("Mr. Smith met Dr. J. K. Lee.", ["Mr. Smith met Dr. J. K. Lee."]),
        ("Use tea, e.g. Earl Grey, i.e. black.", ["Use tea, e.g. Earl Grey, i.e. black."]),
        ("It is 3.14 metres. Yes.", ["It is 3.14 metres.", "Yes."]),
        ("See No. 5 below. No. That is all.", ["See No. 5 below.", "No.", "That is all."]),
        ("He left the U.S. in May. Then", ["He left the U.S. in May.", "Then"]),
        ("Pens, ink, etc. They sell all.", ["Pens, ink, etc.", "They sell all."]),
        ("Well... maybe. Well... Maybe.", ["Well... maybe.", "Well...", "Maybe."]),
        ('"Stop!" he said. "Why?" "No."', ['"Stop!" he said.', '"Why?"', '"No."']),
        ("A line\nbroken in two.", ["A line broken in two."]),
        ("A title\n\nA text.", ["A title", "A text."]),
        ("You need:\nmilk\n- tea\n* **hot** water", ["You need:", "milk", "tea", "hot water"]),
        ("1. Boil it.\n2. Drink it.", ["1. Boil it.", "2. Drink it."]),
        ("# Head\nSee [the site](http://a.b/c).", ["Head See the site."]),
        ("Say `code` and __this__, or *that*.", ["Say code and this, or that."]),
        ("2*3 is 6, snake_case stays.", ["2*3 is 6, snake_case stays."]),
        ("", []),
        (" \n\t ", []),
        ("---\n***", []),
    ],
)  # fmt: skip
def test_sentences(text: str, parts: list[str]) -> None:
    """Abbreviations, decimals, ellipses, quotes, line breaks, lists and Markdown."""
    assert split_sentences(text) == parts


def test_long_sentence_is_cut_at_its_last_comma_that_fits() -> None:
    """A sentence over the soft limit goes out in clauses."""
    clause = "and the small boat went on over the grey water,"
    parts = split_sentences(" ".join([clause] * 4))
    assert all(part.endswith(",") for part in parts)
    assert len(parts) > 1


def test_long_sentence_without_comma_is_cut_between_words() -> None:
    """The hard limit holds without punctuation."""
    parts = split_sentences(" ".join(["water"] * 100))
    assert len(parts) > 1
    assert set(" ".join(parts).split()) == {"water"}


def test_sentence_is_given_when_the_next_begins() -> None:
    """The first part does not wait for the end of the text."""
    stream = SentenceStream()
    assert stream.feed("It rains. ") == []
    assert stream.feed("S") == ["It rains."]
    assert stream.flush() == ["S"]


def test_flush_makes_the_stream_new() -> None:
    """A stream can be used again: a list item at the start is known as such."""
    stream = SentenceStream()
    stream.feed("One two")
    stream.flush()
    assert stream.feed("1. Boil. Next") + stream.flush() == ["1. Boil.", "Next"]


@pytest.mark.parametrize(
    ("part", "expected"),
    [("🙂 …", False), ("—!", False), ("5", True), ("a", True), ("100 %", True), ("é", True)],
)
def test_has_words(part: str, expected: bool) -> None:
    """Only what has a sound is sent to the talker."""
    assert has_words(part) is expected
