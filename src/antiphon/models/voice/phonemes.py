"""From text to the talker's prompts, by the grapheme-to-phoneme step of hibari-tts (about 1 ms per
sentence).
"""

from __future__ import annotations

import functools
import json
import unicodedata
from collections.abc import Iterator, Sequence
from importlib import resources

from hibari.g2p import G2P

from antiphon.models.voice.vocabulary import BOS, FIRST_MARK, NUM_MARKS, PAD, SEP, SPACE

PART_PHONEMES = 200
"""Ids of a comfortable part; about 12 s of speech. Longer texts become several prompts."""

MAX_PHONEMES = 338
"""Ids that still fit the talker's 1,024 positions: 338 + 4 of prompt, then 340 with a code each
and EOS.
"""

MAX_WORDS = NUM_MARKS

MAX_HYPHENS = 6
"""Of a word that is read as one."""


def prompts(text: str) -> list[list[int]]:
    """Prompts that speak `text` in order; none if it holds nothing that can be spoken."""
    return [prompt(part) for part in _parts(phoneme_ids(text)) if speakable(part)]


def prompt(ids: Sequence[int]) -> list[int]:
    """The prompt of one part: at most `MAX_WORDS` words of phoneme ids, spaces between them."""
    marked, mark = [BOS, FIRST_MARK], FIRST_MARK
    for phoneme in ids:
        if phoneme == SPACE:
            mark += 1
            marked.append(mark)
        else:
            marked.append(phoneme)
    return [*marked, PAD, SEP]


def phoneme_ids(text: str) -> list[int]:
    """The ids of the text's phonemes, spaces and punctuation; what the talker does not know is
    left out.

    `text` must be normalised: the library cannot read numbers of more than 66 digits.
    """
    table = _table()
    text = " ".join(_short(word) for word in text.split(" "))
    try:
        spoken = _g2p()(text)
    except ValueError:  # the library takes "¹" beside a sign for a number that int() can read
        spoken = _g2p()("".join(_plain_digit(char) for char in text))
    return [table[char] for char in " ".join(spoken.split()) if char in table]


def speakable(ids: Sequence[int]) -> bool:
    """True if the ids hold a sound, and not only punctuation and stress marks."""
    return not _sounds().isdisjoint(ids)


def _parts(ids: Sequence[int]) -> Iterator[list[int]]:
    """Whole words together as long as they fit a part; a word that is longer than a part is cut."""
    part: list[int] = []
    words = 0
    for word in _words(ids):
        for start in range(0, len(word), PART_PHONEMES):
            piece = word[start : start + PART_PHONEMES]
            if part and (len(part) + 1 + len(piece) > PART_PHONEMES or words == MAX_WORDS):
                yield part
                part, words = [], 0
            part = [*part, SPACE, *piece] if part else piece
            words += 1
    if part:
        yield part


def _words(ids: Sequence[int]) -> Iterator[list[int]]:
    word: list[int] = []
    for phoneme in ids:
        if phoneme != SPACE:
            word.append(phoneme)
        elif word:
            yield word
            word = []
    if word:
        yield word


def _short(word: str) -> str:
    """A word of many parts as so many words: the library's time grows with their square."""
    return word.replace("-", " ") if word.count("-") > MAX_HYPHENS else word


def _plain_digit(char: str) -> str:
    digit = unicodedata.digit(char, None)
    return char if digit is None else str(digit)


@functools.cache
def _g2p() -> G2P:
    return G2P(british=False)


@functools.cache
def _table() -> dict[str, int]:
    text = (resources.files("hibari") / "assets" / "vocab.json").read_text(encoding="utf-8")
    table: dict[str, int] = json.loads(text)
    return table


@functools.cache
def _sounds() -> frozenset[int]:
    """Ids of phonemes proper: letters, but not the modifier letters that mark stress and length."""
    letters = ("Ll", "Lu", "Lo")
    return frozenset(i for char, i in _table().items() if unicodedata.category(char) in letters)
