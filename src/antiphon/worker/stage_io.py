"""The stage's input and output in the worker: executes orders, knows no other stage.

A step's orders are queued on the main thread (`submit`) and carried out when its output is made
(`finish`), in order: at once under synchronous scheduling; under asynchronous scheduling off the
critical path, where the output is waited for, on whatever thread that is. A failure concerns one
request and comes back as news.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
    epoch: int
    outlets: list[Outlet]
    rows: RowLog | None  # None: no outlet wants tensors
    failed: bool = False


class StageIO:
    """Owned by the runner and called on its main thread; what any thread may call says so.

    `embed_width`: of the model's input embeddings, None if the stage is given token ids only.
    """

    def __init__(
        self,
        options: StageOptions,
        model: str,
        connector: Connector,
        *,
        embed_width: int | None = None,
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
        self._inlets = Inlets(connector, inputs, embed_width)
        self._sender = Sender(connector, policy or RetryPolicy())
        self._logs: dict[str, _Producer] = {}  # those that want rows now
        self._orders: deque[Callable[[], None]] = deque()  # submitted, not carried out
        self._turn = threading.Lock()  # held by whoever carries orders out; for what follows
        self._producers: dict[tuple[str, int], _Producer] = {}  # by uid and epoch
        self._news = StageNews()

    # --- orders -------------------------------------------------------------------------------

    def submit(self, work: StageWork) -> None:
        """Take one step's orders. What the step itself must know takes effect now."""
        for ticket in work.tickets:
            if (error := _raised(self._open, ticket)) is not None:
                failed = _Producer(ticket.uid, ticket.epoch, [], None)
                self._orders.append(partial(self._begin, failed))
                self.fail(ticket.uid, error)
        for ended in work.ended:
            log = self._logs.get(ended.uid)
            if log is not None and log.epoch == ended.epoch:
                del self._logs[ended.uid]
        self._orders.append(partial(self._execute, work))

    def finish(self) -> None:
        """Carry out everything that has been submitted, in order. Any thread."""
        with self._turn:
            while self._orders:
                self._orders.popleft()()

    def take_news(self) -> StageNews:
        """What came of it since the last call. Any thread."""
        with self._turn:
            news, self._news = self._news, StageNews()
            return news

    # --- tensors ------------------------------------------------------------------------------

    def row_log(self, uid: str) -> RowLog | None:
        """Where a step's rows of this request go; None if no edge wants any."""
        producer = self._logs.get(uid)
        return None if producer is None or producer.failed else producer.rows

    @property
    def wants_rows(self) -> bool:
        """Whether any live request wants tensors: decides if a step does anything at all."""
        return bool(self._logs)

    @property
    def row_edges(self) -> list[str]:
        """Edges whose adapters want tensors: hidden rows or side outputs."""
        return [edge for edge, made in self._factories.items() if _wants_tensors(made.needs)]

    @property
    def quiet_edges(self) -> list[str]:
        """Edges whose adapters want neither tensors nor tokens: they are told of ends alone."""
        return [edge for edge, made in self._factories.items() if not _wants_steps(made.needs)]

    @property
    def side_outputs(self) -> frozenset[str]:
        """Names of the side outputs that any edge wants."""
        return frozenset(n for f in self._factories.values() for n in f.needs.side_outputs)

    def fail(self, uid: str, error: AntiphonError) -> None:
        """End this request: its outputs of a step could not be had."""
        self._orders.append(partial(self._fail, uid, error))

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

    def take_rows(self, width: int) -> None:
        """The model wants decode rows of this width, which need not be that of its embeddings."""
        self._inlets.row_width = width

    def removed(self, uid: str) -> None:
        """Upstream has removed the request's state."""
        self._orders.append(partial(self._inlets.drop, uid))

    # --- checks -------------------------------------------------------------------------------

    def __len__(self) -> int:
        with self._turn:
            return len(self._producers) + len(self._inlets) + self._sender.num_unsent

    def check_integrity(self) -> None:
        """Raise AssertionError if the stores disagree with themselves or each other."""
        self._connector.check_integrity()
        with self._turn:
            self._inlets.check_integrity()
            self._sender.check_integrity()
            for (uid, _), producer in self._producers.items():
                if not (producer.outlets or producer.failed):
                    raise AssertionError(f"request {uid} is kept without an edge")
            if not (self._orders or self._logs.keys() <= {uid for uid, _ in self._producers}):
                raise AssertionError("rows are collected for a request that has ended")

    @property
    def connector(self) -> Connector:
        return self._connector

    # --- parts --------------------------------------------------------------------------------

    def _execute(self, work: StageWork) -> None:
        dropped = {(ended.uid, ended.epoch) for ended in work.ended if not ended.keep}
        for uid, accepted in work.tokens.items():
            if (uid, accepted.epoch) not in dropped:
                self._guard(uid, self._accept, uid, accepted)
        for ended in work.ended:
            self._guard(ended.uid, self._end, ended)
        for fetch in work.fetches:
            self._guard(fetch.uid, self._fetch, fetch)
        if work.discards:
            self._connector.delete(work.discards)
        if work.retry:
            for uid, error in self._sender.retry(self._news).items():
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
        self._sender.drop(uid)
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
        producer = _Producer(ticket.uid, ticket.epoch, outlets, rows)
        if rows is not None:
            self._logs[ticket.uid] = producer
        self._orders.append(partial(self._begin, producer))

    def _begin(self, producer: _Producer) -> None:
        self._producers[producer.uid, producer.epoch] = producer

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
        if (arrived := self._inlets.fetch(fetch)) is not None:
            self._news.arrived.append(arrived)


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


def _wants_steps(needs: OutputNeeds) -> bool:
    return needs.requires_token_updates or _wants_tensors(needs)


def _make(name: str, context: StageContext) -> object:
    maker = load_object(name)
    if not callable(maker):
        raise AdapterError(f"'{name}' is not a class")
    return maker(context)
