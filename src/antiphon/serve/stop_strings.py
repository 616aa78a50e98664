"""Strings before which a text ends, found across the deltas that it comes in."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from antiphon.orchestrator.api import Finished, OmniEvent, TextDelta


@dataclass(slots=True)
class StopStrings:
    """Takes a text piece by piece; an end of it that a stop string may begin with is held back."""

    stops: Sequence[str]  # none of them empty
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
        keep = max(_beginning(stop, text) for stop in self.stops)
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


async def until_stop(
    events: AsyncGenerator[OmniEvent], stops: Sequence[str], end: Callable[[], Awaitable[object]]
) -> AsyncGenerator[OmniEvent]:
    """The events of a request whose text ends before a stop string; `end` aborts it there.

    The reply has what was handed out as its text. Raises what `events` raises.
    """
    text, parts = StopStrings(stops), list[str]()
    async with contextlib.aclosing(events):
        async for event in events:
            match event:
                case TextDelta():
                    before = text.found
                    shown = text.feed(event.text)
                case Finished():
                    before, shown = text.found, text.rest()
                case _:
                    yield event
                    continue
            if shown:
                parts.append(shown)
                yield TextDelta(shown)
            if text.found and not before:
                await end()
            if isinstance(event, Finished):
                reply = replace(event.reply, text="".join(parts))
                yield Finished(replace(reply, finish_reason="stop") if text.found else reply)
