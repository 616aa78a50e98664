"""The stage's input and output in the worker: executes orders, knows no other stage.

A step's orders are queued on the main thread (`submit`) and carried out when its output is made
(`finish`), in order: at once under synchronous scheduling, on the output's own thread under
asynchronous scheduling, off the critical path. A failure concerns one request and comes back as
news.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ParamSpec, cast

import torch

from antiphon.connector.base import Connector
from antiphon.core.options import StageOptions
from antiphon.core.retry import RetryPolicy
from antiphon.core.tickets import Accepted, Ended, Fetch, StageNews, StageWork, Ticket
from antiphon.errors import AdapterError, AntiphonError
from antiphon.payload.adapters import (
    InputAdapterFactory,
    OutputAdapterFactory,
    OutputNeeds,
    StageContext,
    StepRows,
)
from antiphon.worker.inlets import DecodeRows, Inlets
from antiphon.worker.load import load_object
from antiphon.worker.outlets import Outlet, Sender
from antiphon.worker.rows import RowLog

P = ParamSpec("P")


@dataclass(slots=True)
class _Producer:
    """One request, or one segment of a session, whose outputs are wanted."""

    uid: str
    outlets: list[Outlet]
    rows: RowLog | None  # None: no outlet wants tensors
    failed: bool = False


class StageIO:
    """Owned by the runner. Called on the runner's main thread, except for `finish`."""

    def __init__(
        self,
        options: StageOptions,
        model: str,
        connector: Connector,
        *,
        takes_rows: bool = True,
        policy: RetryPolicy | None = None,
    ) -> None:
        self._connector = connector
        self._factories: dict[str, OutputAdapterFactory] = {}
        self._streams = {out.name: out.stream for out in options.outputs}
        for out in options.outputs:
            context = StageContext(options.stage, out.name, model, out.options, out.stream)
            self._factories[out.name] = cast("OutputAdapterFactory", _make(out.adapter, context))
        inputs = {}
        for inp in options.inputs:
            context = StageContext(options.stage, inp.name, model, inp.options, inp.stream)
            inputs[inp.name] = cast("InputAdapterFactory", _make(inp.adapter, context))
        self._inlets = Inlets(connector, inputs, takes_rows=takes_rows)
        self._sender = Sender(connector, policy or RetryPolicy())
        self._producers: dict[tuple[str, int], _Producer] = {}  # by uid and epoch
        self._logs: dict[str, tuple[int, _Producer]] = {}  # those that want rows now, with epochs
        self._orders: deque[Callable[[], None]] = deque()  # submitted, not carried out
        self._turn = threading.Lock()  # held by whoever carries orders out
        self._news = StageNews()

    # --- orders -------------------------------------------------------------------------------

    def submit(self, work: StageWork) -> None:
        """Take one step's orders. What the step itself must know takes effect now."""
        for ticket in work.tickets:
            if (error := _raised(self._open, ticket)) is not None:
                self.fail(ticket.uid, error)
        for ended in work.ended:
            if (log := self._logs.get(ended.uid)) is not None and log[0] == ended.epoch:
                del self._logs[ended.uid]
        self._orders.append(lambda: self._execute(work))

    def finish(self) -> StageNews:
        """Carry out everything that has been submitted, and say what came of it. Any thread."""
        with self._turn:
            while self._orders:
                self._orders.popleft()()
            news, self._news = self._news, StageNews()
            return news

    # --- tensors ------------------------------------------------------------------------------

    def row_log(self, uid: str) -> RowLog | None:
        """Where a step's rows of this request go; None if no edge wants any."""
        found = self._logs.get(uid)
        return None if found is None or found[1].failed else found[1].rows

    @property
    def wants_rows(self) -> bool:
        """Whether any live request wants tensors: decides if a step does anything at all."""
        return bool(self._logs)

    @property
    def row_edges(self) -> list[str]:
        """Edges whose adapters want tensors: hidden rows or side outputs."""
        return [edge for edge, made in self._factories.items() if _wants_tensors(made.needs)]

    @property
    def side_outputs(self) -> frozenset[str]:
        """Names of the side outputs that any edge wants."""
        return frozenset(n for f in self._factories.values() for n in f.needs.side_outputs)

    def fail(self, uid: str, error: AntiphonError) -> None:
        """End this request: its outputs of a step could not be had."""
        self._orders.append(lambda: self._fail(uid, error))

    def prompt_rows(self, uid: str) -> torch.Tensor | None:
        """Embedding rows of a planned prompt, [n, width]; kept until the request is removed."""
        return self._inlets.prompt_rows.get(uid)

    def decode_rows(self, uid: str) -> DecodeRows | None:
        """The rows that the request's output tokens are computed with; None if it has none."""
        return self._inlets.decode_rows.get(uid)

    @property
    def has_decode_rows(self) -> bool:
        """Whether any request has such rows."""
        return bool(self._inlets.decode_rows)

    def removed(self, uid: str) -> None:
        """Upstream has removed the request's state."""
        self._orders.append(lambda: self._inlets.drop(uid))

    # --- checks -------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._producers) + len(self._inlets) + self._sender.num_unsent

    def check_integrity(self) -> None:
        """Raise AssertionError if a store disagrees with itself."""
        self._connector.check_integrity()
        self._inlets.check_integrity()
        for (uid, _), producer in self._producers.items():
            if not producer.outlets:
                raise AssertionError(f"request {uid} is kept without an edge")

    @property
    def connector(self) -> Connector:
        return self._connector

    # --- parts --------------------------------------------------------------------------------

    def _execute(self, work: StageWork) -> None:
        for uid, accepted in work.tokens.items():
            self._guard(uid, self._accept, uid, accepted)
        for ended in work.ended:
            self._guard(ended.uid, self._end, ended)
        for fetch in work.fetches:
            self._guard(fetch.uid, self._fetch, fetch)
        if work.discards:
            self._connector.delete(work.discards)
        if work.retry:
            for uid, error in self._sender.retry(self._news):
                self._fail(uid, error)

    def _guard(self, uid: str, call: Callable[P, None], *args: P.args, **kw: P.kwargs) -> None:
        """Isolation boundary: whatever one request's adapter or payload raises ends only it."""
        if (error := _raised(call, *args, **kw)) is not None:
            self._fail(uid, error)

    def _fail(self, uid: str, error: AntiphonError) -> None:
        for (owner, _), producer in self._producers.items():
            if owner == uid:
                if producer.failed:
                    return  # said already: a step that was in flight then fails as well
                producer.failed = True
        self._news.failed.append((uid, error.to_wire()))

    def _open(self, ticket: Ticket) -> None:
        outlets = []
        for edge in ticket.edges:
            factory = self._factories.get(edge)
            if factory is None:
                raise AdapterError(f"the stage has no outgoing edge '{edge}'")
            adapter = factory.open(ticket.uid, ticket.params)
            stream = self._streams[edge]
            outlets.append(Outlet(ticket.uid, edge, ticket.epoch, adapter, factory.needs, stream))
        rows = None
        if any(_wants_tensors(outlet.needs) for outlet in outlets):
            rows = RowLog(
                wants_hidden=any(outlet.needs.include_hidden for outlet in outlets),
                side_names=(n for outlet in outlets for n in outlet.needs.side_outputs),
                first=ticket.first,
            )
        producer = _Producer(ticket.uid, outlets, rows)
        self._producers[ticket.uid, ticket.epoch] = producer
        if rows is not None:
            self._logs[ticket.uid] = (ticket.epoch, producer)

    def _accept(self, uid: str, accepted: Accepted) -> None:
        producer = self._producers.get((uid, accepted.epoch))
        if producer is None or producer.failed:
            return
        # The last accepted token has not been forwarded: its row does not exist yet.
        rows = producer.rows.confirm(accepted.num_tokens - 1) if producer.rows is not None else []
        for outlet in producer.outlets:
            self._offer_rows(outlet, rows)
            if outlet.needs.requires_token_updates:
                made = outlet.adapter.on_tokens(accepted.token_ids)
                self._sender.emit(outlet, made, self._news)

    def _offer_rows(self, outlet: Outlet, rows: Sequence[StepRows]) -> None:
        if _wants_tensors(outlet.needs):
            for step in rows:
                if not outlet.needs.include_hidden:
                    step = replace(step, hidden=None)  # noqa: PLW2901  another edge asked for it
                self._sender.emit(outlet, outlet.adapter.on_rows(step), self._news)

    def _end(self, ended: Ended) -> None:
        producer = self._producers.pop((ended.uid, ended.epoch), None)
        if not ended.keep:
            self._sender.drop(ended.uid)
        if producer is None or producer.failed or not ended.keep:
            return
        rows = producer.rows.confirm(ended.num_tokens - 1) if producer.rows is not None else []
        for outlet in producer.outlets:
            self._offer_rows(outlet, rows)
            self._sender.end(outlet, outlet.adapter.on_end(), self._news)

    def _fetch(self, fetch: Fetch) -> None:
        self._news.arrived.append(self._inlets.fetch(fetch))


def _raised(call: Callable[P, None], *args: P.args, **kw: P.kwargs) -> AntiphonError | None:
    """What a call into an adapter raised, as an error of ours."""
    try:
        call(*args, **kw)
    except AntiphonError as error:
        return error
    except Exception as error:  # noqa: BLE001  adapters are foreign code
        return AdapterError(f"an adapter raised {type(error).__name__}: {error}")
    return None


def _wants_tensors(needs: OutputNeeds) -> bool:
    return needs.include_hidden or bool(needs.side_outputs)


def _make(name: str, context: StageContext) -> object:
    maker = load_object(name)
    if not callable(maker):
        raise AdapterError(f"'{name}' is not a class")
    return maker(context)
