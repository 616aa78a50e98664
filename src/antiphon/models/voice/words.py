"""Words out of a growing text, as they are spoken: without Markdown, none of them overlong. And
where sentences end.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_WORD = 130
"""Spoken length at which a word is broken: 13 digits, or a hundred letters without a space."""

_DIGIT = 10.0  # "seven hundred seventy-seven billion" and so on: ten phonemes per digit at most
_NAMED_SIGN = 10.0  # "%" is "percent"
_LETTER = 1.2
_SPELLED = {"w": 8.0, "x": 4.0, "q": 4.0}
_SPELLED_OTHER = 3.0
_MAX_ACRONYM = 5
_SILENT = frozenset(".,;:!?…'\"’‘“”()-–—")  # noqa: RUF001

_BULLETS = frozenset("-*•+>–")  # noqa: RUF001
_RULE = re.compile(r"#+|[-*_=~]{3,}|[`~]{3,}\w*")
_EMPHASIS = re.compile(r"(?:^|(?<=[\"“‘(]))[*_`]+|[*_`]+(?=[.,;:!?…\"”’)]*$)")  # noqa: RUF001
_LINK_TARGET = re.compile(r"\]\([^)]*\)?")
_LIST_NUMBER = re.compile(r"\(?(?:\d{1,3}|[A-Za-z])\.")

_ENDS = ".!?…。！？"  # noqa: RUF001
_OPENERS = "\"'“‘(["  # noqa: RUF001
_CLOSERS = "\"'”’)]»"  # noqa: RUF001

_ALWAYS_GO_ON = frozenset(
    (
        "mr", "mrs", "ms", "dr", "prof", "rev", "hon", "st", "mt", "gen", "sen", "rep",
        "gov", "capt", "cpt", "lt", "col", "sgt", "maj", "e.g", "i.e", "eg", "ie", "vs",
        "cf", "viz", "approx", "fig", "vol", "pp", "ca",
    )
)  # fmt: skip
_GO_ON_BEFORE_NUMBER = frozenset(
    (
        "no", "nos", "p", "sec", "ch", "art", "eq",
    )
)  # fmt: skip
_END_BEFORE_CAPITAL = frozenset(
    (
        "etc", "a.m", "p.m", "am", "pm", "u.s", "u.k", "u.n", "inc", "ltd", "co", "corp",
        "jr", "sr", "dept", "est", "ave", "blvd", "rd",
    )
)  # fmt: skip


class Word(NamedTuple):
    """A word, and whether it stood first in its line."""

    text: str
    line_start: bool


class WordStream:
    """Takes text in any pieces, gives each word once the character behind it is known."""

    def __init__(self) -> None:
        self._restart()

    def _restart(self) -> None:
        self._chars: list[str] = []
        self._newlines = 1  # since the last word; the text's beginning is a line's beginning
        self._after_colon = False

    def feed(self, text: str) -> list[Word]:
        """The words that are complete now."""
        words: list[Word] = []
        for char in text:
            if char.isspace():
                words += self._end_word()
                self._newlines += char == "\n"
            elif char.isprintable():  # drops joiners, direction marks and control characters
                if self._chars and spoken_length("".join([*self._chars, char])) > MAX_WORD:
                    words += self._end_word()
                self._chars.append(char)
        return words

    def flush(self) -> list[Word]:
        """The word that the text's end completes. The stream begins anew afterwards."""
        words = self._end_word()
        self._restart()
        return words

    def starts_word(self, char: str) -> bool:
        """Would `char` be the first one of a word?"""
        return not self._chars and char.isprintable() and not char.isspace()

    def line_break_before(self, char: str) -> bool:
        """Is the line break before a word that begins with `char` more than a space?

        It is at an empty line, before a list item or heading, and behind a colon.
        """
        if self._newlines != 1:
            return self._newlines > 1
        return self._after_colon or char in _BULLETS or char == "#" or char.isdigit()

    def _end_word(self) -> list[Word]:
        if not self._chars:
            return []
        raw, self._chars = "".join(self._chars), []
        line_start, self._newlines = self._newlines > 0, 0
        text = _plain(raw, line_start)
        if not text:
            # a bullet: what follows still stands first in its line
            self._newlines = int(line_start)
            return []
        self._after_colon = text.endswith(":")
        return [Word(text, line_start)]


def spoken_length(word: str) -> float:
    """An upper estimate of the phonemes that a word takes; about its length for ordinary words."""
    letters = [char for char in word.lower() if char.isalpha()]
    acronym = word.isupper() and len(letters) <= _MAX_ACRONYM
    spelled = acronym or not any(char in "aeiou" or not char.isascii() for char in letters)
    length = 0.0
    for char in word.lower():
        if char.isdigit():
            length += _DIGIT
        elif char.isalpha():
            length += _SPELLED.get(char, _SPELLED_OTHER) if spelled else _LETTER
        else:
            length += 1.0 if char in _SILENT else _NAMED_SIGN
    return length


def ends_sentence(word: Word, next_char: str) -> bool:
    """Does a sentence end with `word`, when the next word begins with `next_char`?"""
    core = word.text.rstrip(_CLOSERS)
    if not core or core[-1] not in _ENDS or next_char.islower():
        return False
    if core[-1] != "." or core.endswith(".."):
        return True
    if word.line_start and _LIST_NUMBER.fullmatch(core):
        return False
    return _stop_ends(core[:-1].lstrip(_OPENERS), next_char)


def _stop_ends(stem: str, next_char: str) -> bool:
    """Is the stop behind `stem` the end of a sentence, and not part of an abbreviation?"""
    if len(stem) == 1 and stem.isupper() and stem != "I":  # an initial
        return False
    known = stem.lower()
    if known in _GO_ON_BEFORE_NUMBER:
        return not next_char.isdigit()
    if known in _END_BEFORE_CAPITAL:
        return next_char.isupper()
    return known not in _ALWAYS_GO_ON


def _plain(word: str, line_start: bool) -> str:
    """The word without Markdown; empty if it was nothing else."""
    if (line_start and word in _BULLETS) or _RULE.fullmatch(word):
        return ""
    word = _LINK_TARGET.sub("", word).replace("[", "").replace("]", "")
    return _EMPHASIS.sub("", word)
