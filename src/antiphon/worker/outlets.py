"""The sending ends of a stage's edges: one outlet per request, edge and epoch.

Chunks get their number when they are made and keep it over retries; exactly one carries the end. A
chunk that the connector cannot store now waits, and those behind it, until the scheduler orders a
retry: nothing sleeps here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from antiphon.connector.base import Buffer, Connector
from antiphon.core.retry import RetryPolicy
from antiphon.core.tickets import StageNews
from antiphon.errors import ConnectorError, without_frames
from antiphon.payload import wire
from antiphon.payload.adapters import OutputAdapter, OutputNeeds
from antiphon.payload.ref import Ref
from antiphon.payload.types import Payload


@dataclass(slots=True)
class Outlet:
    """One request's output on one edge."""

    uid: str
    edge: str
    epoch: int
    adapter: OutputAdapter
    needs: OutputNeeds
    stream: bool
    seq: int = 0
    kept: list[Payload] = field(default_factory=list)  # full edge: until the request ends
    unsent: deque[_Unsent] = field(default_factory=deque)
    attempts: int = 0  # of the first unsent chunk
    wait_s: float = 0.0  # until its next attempt
    over: bool = False  # everything that was to leave has left, before the request's end


@dataclass(frozen=True, slots=True)
class _Unsent:
    """A numbered chunk that the connector does not hold yet."""

    ref: Ref  # its size is not known yet
    parts: Sequence[Buffer]


class Sender:
    """Stores chunks and announces them in the news of the step."""

    def __init__(self, connector: Connector, policy: RetryPolicy) -> None:
        self._connector = connector
        self._policy = policy
        self._waiting: dict[tuple[str, str, int], Outlet] = {}  # with unsent chunks

    def emit(self, outlet: Outlet, payloads: Sequence[Payload], news: StageNews) -> None:
        """What an adapter made while the request runs."""
        if not outlet.stream:
            outlet.kept += payloads
            return
        for payload in payloads:
            self._send(outlet, payload, news, end=False)

    def end(self, outlet: Outlet, payloads: Sequence[Payload], news: StageNews) -> None:
        """The rest of a request that finished normally; without any, an explicit empty end."""
        rest = [*outlet.kept, *payloads]
        for payload in rest[:-1]:
            self._send(outlet, payload, news, end=False)
        self._send(outlet, rest[-1] if rest else None, news, end=True)

    @property
    def shortest_wait_s(self) -> float | None:
        """Until the next attempt is due; None if nothing waits."""
        return min((outlet.wait_s for outlet in self._waiting.values()), default=None)

    def retry(self, passed_s: float, news: StageNews) -> dict[str, ConnectorError]:
        """Time has passed: store what could not be stored, where it is its turn.

        Returns the requests for which that is given up.
        """
        lost: dict[str, ConnectorError] = {}
        for key, outlet in list(self._waiting.items()):
            outlet.wait_s -= passed_s
            if outlet.wait_s > 0:  # another request's failure is not this one's attempt
                ask_for_retry(news, outlet.wait_s)
                continue
            try:
                self._flush(outlet, news)
            except ConnectorError as error:
                del self._waiting[key]
                lost.setdefault(outlet.uid, without_frames(error))
        return lost

    def drop(self, uid: str) -> None:
        """The request's chunks are not wanted any more."""
        for key in [key for key in self._waiting if key[0] == uid]:
            del self._waiting[key]

    def __contains__(self, outlet: Outlet) -> bool:
        """Whether chunks of this outlet wait for a retry."""
        return self._waiting.get((outlet.uid, outlet.edge, outlet.epoch)) is outlet

    @property
    def num_unsent(self) -> int:
        """Chunks that wait for a retry."""
        return sum(len(outlet.unsent) for outlet in self._waiting.values())

    def check_integrity(self) -> None:
        """Raise AssertionError if an outlet waits for nothing, or its chunks have a gap."""
        for (uid, edge, _), outlet in self._waiting.items():
            seqs = [chunk.ref.seq for chunk in outlet.unsent]
            if not seqs or seqs != list(range(outlet.seq - len(seqs), outlet.seq)):
                raise AssertionError(f"request {uid} waits to store chunks {seqs} on edge {edge}")

    def _send(self, outlet: Outlet, payload: Payload | None, news: StageNews, *, end: bool) -> None:
        seq, outlet.seq = outlet.seq, outlet.seq + 1
        uid, edge, epoch = outlet.uid, outlet.edge, outlet.epoch
        if payload is None:
            outlet.unsent.append(_Unsent(Ref(uid, edge, seq, end=end, epoch=epoch), ()))
        else:
            key = f"{uid}/{edge}/{epoch}/{seq}"
            ref = Ref(uid, edge, seq, end, key, 0, payload.specs(), epoch)
            outlet.unsent.append(_Unsent(ref, wire.encode(payload)))
        if len(outlet.unsent) == 1:  # otherwise it stands behind one that waits for a retry
            self._flush(outlet, news)

    def _flush(self, outlet: Outlet, news: StageNews) -> None:
        """Store what is unsent, in order, up to the first that cannot be stored now."""
        while outlet.unsent:
            ref, parts = outlet.unsent[0].ref, outlet.unsent[0].parts
            if ref.key is not None:
                try:
                    nbytes = self._connector.put(ref.key, parts)
                except ConnectorError as error:
                    self._postpone(outlet, ref, error, news)
                    return
                ref = msgspec.structs.replace(ref, nbytes=nbytes)
            news.refs.append(ref)
            outlet.unsent.popleft()
            outlet.attempts = 0
        self._waiting.pop((outlet.uid, outlet.edge, outlet.epoch), None)

    def _postpone(self, outlet: Outlet, ref: Ref, error: ConnectorError, news: StageNews) -> None:
        outlet.attempts += 1
        delay = self._policy.next_delay(outlet.attempts)
        if delay is None:
            raise ConnectorError(
                f"chunk {ref.seq} of edge '{ref.edge}' could not be stored after "
                f"{outlet.attempts} attempts: {error}"
            ) from error
        outlet.wait_s = delay
        self._waiting[outlet.uid, outlet.edge, outlet.epoch] = outlet
        ask_for_retry(news, delay)


def ask_for_retry(news: StageNews, delay_s: float) -> None:
    """Something could not be stored: an order to retry should come after this time."""
    news.retry_in_s = delay_s if news.retry_in_s is None else min(delay_s, news.retry_in_s)
