"""How far the talker has read its prompt, and what may come next. Pure bookkeeping on token ids.

The output repeats each id between BOS and SEP and follows it with at least one and at most
`MAX_CODES` codes (fewer on the closing stop and pad, where the voice would slur), then EOS. So
every phoneme is spoken once and in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from antiphon.models.voice.vocabulary import EOS, FIRST_CODE

MAX_CODES = 16
MAX_CODES_AT_END = 8  # each of the last two ids: the stop and the pad


class Allowed(NamedTuple):
    """What may be sampled next: any code, or the one id that continues the reading."""

    code: bool
    repeat: bool
    repeat_id: int


class Reading:
    """The state of one request. `output` is the live list of its sampled ids, read up to its end
    at each call.
    """

    __slots__ = ("_expected", "_output", "_place", "_room", "_run", "_seen")

    def __init__(self, prompt: Sequence[int], output: Sequence[int], room: int) -> None:
        """`room` is the number of ids that may be sampled in all: codes are cut so that the
        reading still ends.
        """
        self._expected = [*prompt[1:-1], EOS]
        self._output = output
        self._room = room
        self._restart()

    def _restart(self) -> None:
        self._seen = 0  # ids of the output that are counted below
        self._place = 0  # index of the next id to repeat
        self._run = 0  # codes since the last repeated id

    def allowed(self) -> Allowed:
        """What may come next."""
        self._catch_up()
        place, run, last = self._place, self._run, len(self._expected) - 1
        if place > last:  # EOS was sampled; this row's result is not used
            return Allowed(False, True, EOS)
        cap = MAX_CODES_AT_END if place >= last - 1 else MAX_CODES
        # each id still to be repeated needs a place for itself and, EOS apart, one for a code
        needed = 2 * (last - place) + 1
        code = place > 0 and run < cap and (run == 0 or self._room - self._seen > needed)
        return Allowed(code, run > 0 or place == 0, self._expected[place])

    def _catch_up(self) -> None:
        output = self._output
        if len(output) < self._seen:  # rolled back: count again
            self._restart()
        while self._seen < len(output):
            token = output[self._seen]
            if token < 0:  # stands for an id that is not known yet
                return
            if token >= FIRST_CODE:
                self._run += 1
            else:
                self._place += 1
                self._run = 0
            self._seen += 1
