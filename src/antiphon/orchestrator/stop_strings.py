"""Strings before which a text ends, found across the deltas that it comes in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.errors import InvalidRequestError
from antiphon.pipeline.topology import Stage, Topology

MAX_STOPS = 4  # of one request
MAX_STOP_CHARS = 256  # of each


@dataclass(slots=True)
class StopStrings:
    """Takes a text piece by piece; an end of it that a stop string may begin with is held back."""

    stops: Sequence[str]  # none of them empty; without any the text passes as it is
    found: bool = False
    _held: str = ""

    def feed(self, text: str) -> str:
        """What of the text so far is certain and new; nothing comes after a stop string."""
        if self.found:
            return ""
        text = self._held + text
        places = [place for stop in self.stops if (place := text.find(stop)) >= 0]
        if places:
            self.found, self._held = True, ""
            return text[: min(places)]
        keep = max((_beginning(stop, text) for stop in self.stops), default=0)
        certain = len(text) - keep
        self._held = text[certain:]
        return text[:certain]

    def rest(self) -> str:
        """The text has ended: what was held back was no stop string."""
        held, self._held = self._held, ""
        return held


def _beginning(stop: str, text: str) -> int:
    """Length of the longest end of `text` that `stop` begins with and does not end with."""
    longest = min(len(stop) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


def check_stops(stops: Sequence[str], topology: Topology, path: Sequence[Stage]) -> None:
    """Raise InvalidRequestError for stop strings that a request on `path` cannot have.

    What is made of a text, such as sound, is under way before a stop string is found in it.
    """
    if not stops:
        return
    if len(stops) > MAX_STOPS:
        raise InvalidRequestError(f"stop has {len(stops)} strings; give at most {MAX_STOPS}")
    for stop in stops:
        if not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise InvalidRequestError(
                f"stop has a string of {len(stop)} characters; give 1 to {MAX_STOP_CHARS}"
            )
    producers = {edge.producer for edge in topology.edges_among(path)}
    given = [stage.output for stage in path if stage.name not in producers]
    if given != ["text"]:
        last = " and ".join(output or "nothing" for output in given)
        raise InvalidRequestError(
            f"stop is for a request that ends in text, and this one ends in {last}; leave stop out,"
            " or ask for text alone"
        )
