"""Cutting a stream of codec frames into the windows that a vocoder decodes, for every codec.

         start         first               stop          end
           │── left ────│──── new frames ────│── right ────│
    ───────┴────────────┴────────────────────┴─────────────┴──────▶ frames

The new frames of all windows are the stream, once and in order. Context is decoded with them, and
its samples are thrown away. Windows depend on the number of frames alone, not on how they arrive.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from antiphon.core.options import Scalar
from antiphon.errors import TopologyError

Frame = TypeVar("Frame")

_KEYS = {  # field of Framing to key of an edge's options
    "initial": "initial_frames",
    "steady": "steady_frames",
    "ramp": "frame_ramp",
    "left": "left_context",
    "right": "right_context",
    "refill_tail": "refill_tail",
}


def _check_count(field: str, value: int, least: int) -> None:
    if type(value) is not int or value < least:
        raise ValueError(
            f"{_KEYS[field]} is {value!r}; it has to be a whole number from {least} up"
        )


@dataclass(frozen=True, slots=True)
class Framing:
    """How a stream of frames is cut. ValueError, which names the option, for a wrong value.

    Chunk i, counted from 0, has min(steady, ceil(initial * ramp**i)) new frames: a small first one
    is heard early, and each plays while the next, larger one is made. `left` and `right` are the
    context frames before and after them. With `refill_tail` the last window is widened to the
    left until it has as many frames in all as a steady one, as far as there are any: for codecs
    that want one shape.
    """

    initial: int = 10
    steady: int = 25
    ramp: float = 2.0
    left: int = 0
    right: int = 0
    refill_tail: bool = False

    def __post_init__(self) -> None:
        _check_count("initial", self.initial, least=1)
        _check_count("steady", self.steady, least=1)
        _check_count("left", self.left, least=0)
        _check_count("right", self.right, least=0)
        if type(self.ramp) not in (int, float) or not 1 <= self.ramp < math.inf:
            raise ValueError(f"{_KEYS['ramp']} is {self.ramp!r}; it has to be a number from 1 up")
        if type(self.refill_tail) is not bool:
            raise ValueError(
                f"{_KEYS['refill_tail']} is {self.refill_tail!r}; it has to be true or false"
            )

    @classmethod
    def from_options(cls, options: Mapping[str, Scalar], owner: str) -> Framing:
        """The framing that an edge's options declare; absent keys have the defaults.

        Keys: initial_frames, steady_frames, frame_ramp, left_context, right_context, refill_tail.
        Others belong to the edge's adapters and are not looked at. TopologyError, which names
        `owner` and the key, for a value of a wrong type or range.
        """
        given: dict[str, Any] = {
            field: options[key] for field, key in _KEYS.items() if key in options
        }
        try:
            return cls(**given)
        except ValueError as error:
            raise TopologyError(f"{owner}: {error}") from error

    @property
    def window(self) -> int:
        """Frames of a steady window in all: the most that any window has."""
        return self.left + self.steady + self.right


_ENDLESS = Framing(initial=sys.maxsize, steady=sys.maxsize, ramp=1)  # no chunk ever fills


@dataclass(frozen=True, slots=True)
class Window:
    """Frames that are decoded together: the new ones [first, stop) and their context.

    `last` is set if the end of the stream was known when the window was cut and nothing follows.
    """

    first: int
    stop: int
    left: int
    right: int
    last: bool

    @property
    def start(self) -> int:
        """Index of the first frame, context included."""
        return self.first - self.left

    @property
    def end(self) -> int:
        """Index after the last frame, context included."""
        return self.stop + self.right


class FrameChunker:
    """Cuts one stream, counting only. Without a framing all of it is one window at the end."""

    def __init__(self, framing: Framing | None) -> None:
        self._framing = _ENDLESS if framing is None else framing
        self._frames = 0  # that exist
        self._first = 0  # new frame that the next window starts with
        self._chunk = 0  # number of the next window
        self._size = self._chunk_size()
        self._ended = False

    def push(self, count: int) -> list[Window]:
        """`count` more frames exist. Returns the windows that are complete now, right context
        included. ValueError for a negative count and after `flush`.
        """
        self._check_open()
        if count < 0:
            raise ValueError(f"{count} frames cannot arrive; the count has to be 0 or more")
        self._frames += count
        windows: list[Window] = []
        while self._first + self._size + self._framing.right <= self._frames:
            windows.append(self._cut(self._first + self._size))
        return windows

    def flush(self) -> list[Window]:
        """No more frames will come. Returns what is left, with the right context that there is.

        The very last window has `last` set; with nothing left the list is empty and the end has to
        be told otherwise. ValueError after `flush`.
        """
        self._check_open()
        self._ended = True
        windows: list[Window] = []
        while self._first < self._frames:
            windows.append(self._cut(min(self._first + self._size, self._frames)))
        return windows

    @property
    def keep_from(self) -> int:
        """Frames before this index are in no window to come."""
        if self._ended:
            return self._frames
        kept = self._first - self._framing.left
        if self._framing.refill_tail:
            # A refilled window reaches back from the stream's end, which is here or later.
            end = max(self._frames, self._first + 1)
            kept = min(kept, end - self._framing.window)
        return max(0, kept)

    def _check_open(self) -> None:
        if self._ended:
            raise ValueError("the stream of frames was flushed; use a new chunker for the next one")

    def _cut(self, stop: int) -> Window:
        framing, first = self._framing, self._first
        left = framing.left
        last = self._ended and stop == self._frames
        if last and framing.refill_tail:
            left = max(left, framing.window - (stop - first))
        right = min(framing.right, self._frames - stop)
        self._first = stop
        self._chunk += 1
        if self._size < framing.steady:  # afterwards the power would overflow one day
            self._size = self._chunk_size()
        return Window(first, stop, min(left, first), right, last)

    def _chunk_size(self) -> int:
        grown = self._framing.initial * self._framing.ramp**self._chunk
        return math.ceil(min(self._framing.steady, grown))


class CodeChunker(Protocol[Frame]):
    """What cuts a request's codec frames into windows, as output adapters use it.

    `FrameWindows` serves every codec that is decoded window by window; one that needs more than
    frames and their context brings its own.
    """

    def push(self, frames: Sequence[Frame]) -> list[tuple[Window, list[Frame]]]:
        """More frames. Returns each window that is complete now, with its frames."""
        ...

    def flush(self) -> list[tuple[Window, list[Frame]]]:
        """No more frames will come. Returns what is left; nothing is held afterwards."""
        ...

    def __len__(self) -> int:
        """How many frames are held."""
        ...


class FrameWindows(Generic[Frame]):
    """A chunker with the frames that it still needs; `len()` is how many it holds.

    With a framing that is at most `framing.window`, however long the stream.
    """

    def __init__(self, framing: Framing | None) -> None:
        self._chunker = FrameChunker(framing)
        self._held: list[Frame] = []
        self._base = 0  # index of the first frame held

    def push(self, frames: Sequence[Frame]) -> list[tuple[Window, list[Frame]]]:
        """Each window that is complete now, with its frames [start, end). See FrameChunker."""
        windows = self._chunker.push(len(frames))
        self._held.extend(frames)
        return self._take(windows)

    def flush(self) -> list[tuple[Window, list[Frame]]]:
        """What is left, with its frames; nothing is held afterwards. See FrameChunker."""
        return self._take(self._chunker.flush())

    def _take(self, windows: list[Window]) -> list[tuple[Window, list[Frame]]]:
        taken = [
            (window, self._held[window.start - self._base : window.end - self._base])
            for window in windows
        ]
        keep_from = self._chunker.keep_from
        del self._held[: keep_from - self._base]
        self._base = keep_from
        return taken

    def __len__(self) -> int:
        return len(self._held)
