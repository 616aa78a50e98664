"""The records of the latest requests, and the form in which they are given out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec

from antiphon.observe.record import Timeline

KEEP = 256  # records
KEEP_BYTES = 8 << 20  # of all records together, as they are kept
_SHARE = 8  # a record that would take more than this part of it is not kept
MAX_ARRIVALS = 256  # of text and of sound in one record; longer lists are thinned

N = TypeVar("N", int, float)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a list of requests shows of one; as in its Timeline."""

    id: str
    label: str | None
    pipeline: str
    entry: str
    started_unix_s: float
    total_s: float
    outcome: str
    cause: str | None = None
    ttft_s: float | None = None
    ttfa_s: float | None = None


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """The list as it is given out."""

    object: Literal["list"] = "list"
    data: list[Summary]


@dataclass(frozen=True, slots=True)
class _Kept:
    summary: Summary
    packed: bytes


class Timelines:
    """An Observer that keeps the latest `keep` records, or fewer if they are large.

    They are kept packed, so that `keep_bytes` is what they take. One thread, the observers'.
    """

    def __init__(self, keep: int = KEEP, keep_bytes: int = KEEP_BYTES) -> None:
        self._keep = keep
        self._keep_bytes = keep_bytes
        self._kept: OrderedDict[str, _Kept] = OrderedDict()  # by id, oldest first
        self._labels: dict[str, str] = {}  # the latest id of each label
        self._bytes = 0

    def began(self, uid: str, path: tuple[str, ...]) -> None:
        """Nothing is kept of a request before its end."""

    def first_output(self, uid: str) -> None:
        """As `began`."""

    def refused(self, code: str) -> None:
        """What did not begin has no timeline."""

    def ended(self, timeline: Timeline) -> None:
        packed = msgspec.msgpack.encode(_public(timeline))
        if len(packed) > self._keep_bytes // _SHARE:
            return
        summary = msgspec.convert(timeline, Summary, from_attributes=True)
        self._kept[timeline.id] = _Kept(summary, packed)
        self._bytes += len(packed)
        if timeline.label is not None:
            self._labels[timeline.label] = timeline.id
        while len(self._kept) > self._keep or self._bytes > self._keep_bytes:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        id_, kept = self._kept.popitem(last=False)
        self._bytes -= len(kept.packed)
        label = kept.summary.label
        if label is not None and self._labels[label] == id_:
            del self._labels[label]

    def get(self, id: str) -> Timeline | None:
        """The record with this id, or the latest with this label; None if there is none (left).

        Without its trace headers, and with long lists thinned.
        """
        kept = self._kept.get(id) or self._kept.get(self._labels.get(id, ""))
        return None if kept is None else msgspec.msgpack.decode(kept.packed, type=Timeline)

    def latest(self) -> list[Summary]:
        """All that are kept, newest first."""
        return [kept.summary for kept in reversed(self._kept.values())]

    @property
    def nbytes(self) -> int:
        """Bytes that the packed records take."""
        return self._bytes

    def check_integrity(self) -> None:
        """Raise AssertionError if the tables disagree."""
        if self._bytes != sum(len(kept.packed) for kept in self._kept.values()):
            raise AssertionError("the bytes of kept records are miscounted")
        if not set(self._labels.values()) <= self._kept.keys():
            raise AssertionError("a label outlived its record")


def timeline_json(timeline: Timeline) -> dict[str, Any]:
    """The public form of a record, ready for JSON: the fields of `Timeline`, all of them there.

    Left out are the trace headers, which are between the caller and the observers. Lists of
    arrivals that are longer than MAX_ARRIVALS are thinned: neighbours are added together, at the
    time of the first of them.
    """
    fields: dict[str, Any] = msgspec.to_builtins(_public(timeline))
    del fields["trace_headers"]
    return fields


def _public(timeline: Timeline) -> Timeline:
    return msgspec.structs.replace(
        timeline,
        text_s=_thinned(timeline.text_s),
        audio_s=_thinned(timeline.audio_s),
        trace_headers={},
    )


def _thinned(arrivals: Sequence[tuple[float, N]]) -> tuple[tuple[float, N], ...]:
    """At most MAX_ARRIVALS of them, with the same sum."""
    size = -(-len(arrivals) // MAX_ARRIVALS) or 1
    if size == 1:
        return tuple(arrivals)
    groups = [arrivals[i : i + size] for i in range(0, len(arrivals), size)]
    # Of whole numbers the sum stays one: it begins with the first of them.
    return tuple((g[0][0], sum((n for _, n in g[1:]), g[0][1])) for g in groups)
