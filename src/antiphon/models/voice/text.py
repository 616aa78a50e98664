"""Text to parts that the talker can speak: sentences, long ones cut at commas or between words.

`SentenceStream` takes text as it is written and gives each part as soon as its end is certain,
which is when the next word begins. Splitting a whole text is the same machine fed at once, so both
give the same parts. The words of all parts in order are the words of `normalise(text)`.
"""

from __future__ import annotations

from collections.abc import Iterator

from antiphon.models.voice.words import Word, WordStream, ends_sentence, spoken_length

SOFT_LIMIT = 110
"""Spoken length, about 6 s, from which a part is cut at a comma; the talker was trained on
sentences up to this.
"""

HARD_LIMIT = 190
"""Spoken length at which a part without a comma is cut between words."""

MIN_CUT = 20
"""A part is not cut at a comma before this spoken length."""

_CLAUSE_END = (",", ";", ":", "—", "–")  # noqa: RUF001
_NAMED_SIGNS = frozenset("%&@#+=$£€¥<>/^~*±×÷°©")  # noqa: RUF001


def normalise(text: str) -> str:
    """The text as it is spoken: one space between words, no Markdown, overlong words broken."""
    stream = WordStream()
    words = stream.feed(text) + stream.flush()
    return " ".join(word.text for word in words)


def split_sentences(text: str) -> list[str]:
    """The parts of a whole text; joined by spaces they are `normalise(text)`."""
    stream = SentenceStream()
    return stream.feed(text) + stream.flush()


def has_words(part: str) -> bool:
    """False if there is nothing to speak: no letter, no digit, no sign that has a name."""
    return any(char.isalnum() or char in _NAMED_SIGNS for char in part)


class SentenceStream:
    """Cuts a growing text into parts. Feeding it in any pieces gives the same parts in the same
    order.
    """

    def __init__(self) -> None:
        self._words = WordStream()
        self._part: list[Word] = []
        self._length = 0.0  # spoken length, with a space for each word

    def feed(self, text: str) -> list[str]:
        """Parts that are now complete."""
        parts: list[str] = []
        for char in text:
            if self._part and self._words.starts_word(char) and self._ends_before(char):
                parts.append(self._take(len(self._part)))
            for word in self._words.feed(char):
                parts += self._add(word)
        return parts

    def flush(self) -> list[str]:
        """What is left at the end of the text. The stream is empty afterwards."""
        parts: list[str] = []
        for word in self._words.flush():
            parts += self._add(word)
        if self._part:
            parts.append(self._take(len(self._part)))
        return parts

    def _ends_before(self, char: str) -> bool:
        """The next word begins with `char`: is the part a sentence?"""
        return self._words.line_break_before(char) or ends_sentence(self._part[-1], char)

    def _add(self, word: Word) -> Iterator[str]:
        """Take a word into the part; give what has to go out first because it grew too long."""
        added = 1 + spoken_length(word.text)
        while self._part and self._length + added > SOFT_LIMIT:
            count = self._last_comma()
            if not count and self._length + added <= HARD_LIMIT:
                break
            yield self._take(count or len(self._part))
        self._part.append(word)
        self._length += added

    def _last_comma(self) -> int:
        """How many words of the part end with its last comma; 0 if there is none to cut at."""
        length, best = 0.0, 0
        for count, word in enumerate(self._part, start=1):
            length += 1 + spoken_length(word.text)
            if length >= MIN_CUT and word.text.endswith(_CLAUSE_END):
                best = count
        return best

    def _take(self, count: int) -> str:
        taken, self._part = self._part[:count], self._part[count:]
        self._length = sum(1 + spoken_length(word.text) for word in self._part)
        return " ".join(word.text for word in taken)
