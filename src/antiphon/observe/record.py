"""The record of one request, made when it ends: what metrics, traces and the timeline are made of.

All times are seconds since the request was submitted, of one clock: the orchestrator's, at which
everything that stages report arrives.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class StageSpan(msgspec.Struct, frozen=True, kw_only=True):
    """One unit of a request: its part at one stage. None: it did not come to that."""

    stage: str
    part: int
    submitted_s: float
    input_s: float | None  # its input had begun to arrive; `submitted_s` where it came with it
    first_s: float | None = None  # first output
    last_s: float | None = None  # end
    tokens: int = 0  # sampled; samples of audio or pixels of a generation stage
    finish: str | None = None  # stop, length; error if it is what ended the request
    replica: int = 0


class EdgeSpan(msgspec.Struct, frozen=True, kw_only=True):
    """What crossed an edge for one part of its producer."""

    edge: str
    producer: str
    consumer: str
    part: int
    first_s: float  # the first chunk was stored, and its ref sent on; the end if there was none
    last_s: float
    chunks: int  # that brought something: a bare end is none
    bytes: int
    cache: bool = False  # a KV cache was handed over
    consumer_parts: tuple[int, ...] = ()  # units that were given something of it
    producer_output_s: float | None = None  # first output of the producing unit
    first_used_s: float | None = None  # a first chunk was used up or let go of: a KV cache taken
    last_used_s: float | None = None
    consumer_output_s: float | None = None  # first output of a unit that was given something


class Playback(msgspec.Struct, frozen=True, kw_only=True):
    """What a listener hears who plays from the first sound on; see `core.continuity`."""

    audio_s: float
    worst_underrun_s: float
    total_underrun_s: float
    gaps: int
    continuous: bool


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """One request, or one segment of a session, from its submission to its one outcome."""

    id: str  # the runtime's own
    label: str | None  # the caller's
    pipeline: str
    entry: str
    started_unix_s: float
    total_s: float
    outcome: str
    """stop or length (it finished), interrupt, abort, error."""
    cause: str | None = None
    """Of an abort who wanted it: request, disconnect, shutdown. Of an error its code."""
    message: str | None = None  # the error's
    prompt_tokens: int = 0
    output_tokens: int = 0  # of the stage that writes the text
    ttft_s: float | None = None
    ttfa_s: float | None = None
    ttfi_s: float | None = None  # to the first picture
    playback: Playback | None = None
    rtf: float | None = None
    text_s: tuple[tuple[float, int], ...] = ()  # arrivals of text: time, tokens
    audio_s: tuple[tuple[float, float], ...] = ()  # arrivals of sound: time, seconds of it
    stages: tuple[StageSpan, ...] = ()
    edges: tuple[EdgeSpan, ...] = ()
    trace_headers: dict[str, str] = {}  # W3C trace context that came with the request


class Observer(Protocol):
    """Who wants to know of requests. Called on the event loop's thread; must not block or raise."""

    def began(self, uid: str, path: tuple[str, ...]) -> None:
        """A request has been submitted to these stages."""
        ...

    def first_output(self, uid: str) -> None:
        """The first text, sound or picture of a request is there."""
        ...

    def ended(self, timeline: Timeline) -> None:
        """A request has its outcome; called once for each `began`, with its id."""
        ...

    def refused(self, code: str) -> None:
        """A request was not begun: the code of its error."""
        ...
