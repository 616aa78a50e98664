"""What a request's sounds say, in their order, while several of them are being written down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from antiphon.pipeline.detokenize import Detokenizer


@dataclass(slots=True)
class _Part:
    """One sound, or a piece of a long one."""

    detokenizer: Detokenizer
    waiting: list[str] = field(default_factory=list)  # that is not its turn yet
    begun: bool = False  # some of it has been handed out
    ended: bool = False


class Transcript:
    """Text is handed out in the order of the parts: that of the first unfinished part as it comes.

    `answers`: nobody writes an answer to what is heard, so it is the request's text itself.
    """

    def __init__(self, detokenizer: Callable[[], Detokenizer], *, answers: bool) -> None:
        self.answers = answers
        self.text = ""  # that has been handed out
        self._detokenizer = detokenizer
        self._parts: dict[int, _Part] = {}
        self._turn = 0

    def on_tokens(self, part: int, token_ids: Sequence[int]) -> str:
        """Tokens of a part; text that is new to the reader."""
        of = self._part(part)
        of.waiting.append(of.detokenizer.feed(token_ids))
        return self._hand_out()

    def on_end(self, part: int) -> str:
        """A part has ended; text that is new to the reader."""
        self._part(part).ended = True
        return self._hand_out()

    def _part(self, number: int) -> _Part:
        if number not in self._parts:
            self._parts[number] = _Part(self._detokenizer())
        return self._parts[number]

    def _hand_out(self) -> str:
        before = len(self.text)
        while (part := self._parts.get(self._turn)) is not None:
            new = "".join(part.waiting)
            part.waiting.clear()
            if not part.begun:
                # A part's text may begin with a space or not; between two there is one.
                new = new.lstrip()
                part.begun = bool(new)
                new = f" {new}" if new and self.text else new
            self.text += new
            if not part.ended:
                break
            self._turn += 1
        return self.text[before:]
