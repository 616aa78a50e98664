"""The stage's input and output in the worker: executes tickets, knows no other stage.

Payloads go into the connector under keys made from the ticket; payloads that the scheduler names
are taken out and turned into prompts. A failure concerns one request and comes back as news.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch

from antiphon.connector.base import Connector
from antiphon.core.options import StageOptions
from antiphon.core.tickets import Accepted, Ended, Fetch, StageNews, StageWork, Ticket
from antiphon.errors import AdapterError, AntiphonError
from antiphon.payload import wire
from antiphon.payload.adapters import (
    InputAdapter,
    OutputAdapter,
    OutputAdapterFactory,
    OutputNeeds,
    RowInputAdapter,
    StageContext,
    StepRows,
)
from antiphon.payload.ref import Ref
from antiphon.payload.types import Payload
from antiphon.worker.load import load_object
from antiphon.worker.rows import RowLog


@dataclass(slots=True)
class _Outlet:
    """One request's output on one edge."""

    edge: str
    epoch: int
    adapter: OutputAdapter
    needs: OutputNeeds
    seq: int = 0


@dataclass(slots=True)
class _Producer:
    """One request whose outputs are wanted."""

    outlets: list[_Outlet]
    rows: RowLog | None  # None: no outlet wants tensors
    failed: bool = False


class StageIO:
    """Owned by the runner; every method is called on the runner's main thread."""

    def __init__(self, options: StageOptions, model: str, connector: Connector) -> None:
        self._connector = connector
        self._factories: dict[str, OutputAdapterFactory] = {}
        self._inputs: dict[str, InputAdapter] = {}
        for out in options.outputs:
            context = StageContext(options.stage, out.name, model, out.options)
            self._factories[out.name] = cast("OutputAdapterFactory", _make(out.adapter, context))
        for inp in options.inputs:
            context = StageContext(options.stage, inp.name, model, inp.options)
            self._inputs[inp.name] = cast("InputAdapter", _make(inp.adapter, context))
        self._producers: dict[str, _Producer] = {}
        self._num_row_logs = 0
        self._prompt_rows: dict[str, torch.Tensor] = {}
        self._news = StageNews()

    # --- orders -------------------------------------------------------------------------------

    def execute(self, work: StageWork) -> None:
        """Carry out one step's orders. Their results are in `take_news`."""
        for ticket in work.tickets:
            self._guard(ticket.uid, self._open, ticket)
        for uid, accepted in work.tokens.items():
            self._guard(uid, self._accept, uid, accepted)
        for ended in work.ended:
            self._guard(ended.uid, self._end, ended)
        for fetch in work.fetches:
            self._guard(fetch.uid, self._fetch, fetch)
        if work.discards:
            self._connector.delete(work.discards)

    def take_news(self) -> StageNews:
        """What has happened since the last call. The caller owns the object."""
        news, self._news = self._news, StageNews()
        return news

    # --- tensors ------------------------------------------------------------------------------

    def row_log(self, uid: str) -> RowLog | None:
        """Where a step's rows of this request go; None if no edge wants any."""
        producer = self._producers.get(uid)
        return None if producer is None or producer.failed else producer.rows

    @property
    def wants_rows(self) -> bool:
        """Whether any live request wants tensors: decides if a step does anything at all."""
        return self._num_row_logs > 0

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
        self._fail(uid, error)

    def prompt_rows(self, uid: str) -> torch.Tensor | None:
        """Embedding rows of a planned prompt, [n, width]; kept until the request is removed."""
        return self._prompt_rows.get(uid)

    def removed(self, uid: str) -> None:
        """Upstream has removed the request's state."""
        self._prompt_rows.pop(uid, None)

    # --- checks -------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._producers) + len(self._prompt_rows)

    def check_integrity(self) -> None:
        """Raise AssertionError if a store disagrees with itself."""
        self._connector.check_integrity()
        for uid, producer in self._producers.items():
            if not producer.outlets:
                raise AssertionError(f"request {uid} is kept without an edge")
        if self._num_row_logs != sum(p.rows is not None for p in self._producers.values()):
            raise AssertionError("the count of requests that want rows is wrong")

    @property
    def connector(self) -> Connector:
        return self._connector

    # --- parts --------------------------------------------------------------------------------

    def _guard(self, uid: str, call: object, *args: object) -> None:
        """Isolation boundary: whatever one request's adapter or payload raises ends only it."""
        try:
            call(*args)  # type: ignore[operator]
        except AntiphonError as error:
            self._fail(uid, error)
        except Exception as error:  # noqa: BLE001  adapters are foreign code
            self._fail(uid, AdapterError(f"an adapter raised {type(error).__name__}: {error}"))

    def _fail(self, uid: str, error: AntiphonError) -> None:
        producer = self._producers.get(uid)
        if producer is not None:
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
            outlets.append(_Outlet(edge, ticket.epoch, adapter, factory.needs))
        wants_rows = any(_wants_tensors(outlet.needs) for outlet in outlets)
        rows = None
        if wants_rows:
            rows = RowLog(
                wants_hidden=any(outlet.needs.include_hidden for outlet in outlets),
                side_names=(n for outlet in outlets for n in outlet.needs.side_outputs),
            )
        self._producers[ticket.uid] = _Producer(outlets, rows)
        self._num_row_logs += wants_rows

    def _accept(self, uid: str, accepted: Accepted) -> None:
        producer = self._producers.get(uid)
        if producer is None or producer.failed:
            return
        # The last accepted token has not been forwarded: its row does not exist yet.
        rows = producer.rows.confirm(accepted.num_tokens - 1) if producer.rows is not None else []
        for outlet in producer.outlets:
            self._offer_rows(uid, outlet, rows)
            if outlet.needs.token_updates:
                self._emit(uid, outlet, outlet.adapter.on_tokens(accepted.token_ids))

    def _offer_rows(self, uid: str, outlet: _Outlet, rows: Sequence[StepRows]) -> None:
        if _wants_tensors(outlet.needs):
            for step in rows:
                if not outlet.needs.include_hidden:
                    step = replace(step, hidden=None)  # noqa: PLW2901  another edge asked for it
                self._emit(uid, outlet, outlet.adapter.on_rows(step))

    def _end(self, ended: Ended) -> None:
        producer = self._producers.pop(ended.uid, None)
        if producer is None:
            return
        self._num_row_logs -= producer.rows is not None
        if producer.failed or not ended.keep:
            return
        rows = producer.rows.confirm(ended.num_tokens - 1) if producer.rows is not None else []
        for outlet in producer.outlets:
            self._offer_rows(ended.uid, outlet, rows)
            *before, last = outlet.adapter.on_end() or (None,)  # nothing left: an empty end
            for payload in before:
                self._send(ended.uid, outlet, payload, end=False)
            self._send(ended.uid, outlet, last, end=True)

    def _emit(self, uid: str, outlet: _Outlet, payloads: Sequence[Payload]) -> None:
        """Send at once: whoever waits for the first payload does not wait for the second."""
        for payload in payloads:
            self._send(uid, outlet, payload, end=False)

    def _send(self, uid: str, outlet: _Outlet, payload: Payload | None, *, end: bool) -> None:
        seq, outlet.seq = outlet.seq, outlet.seq + 1
        if payload is None:
            self._news.refs.append(Ref(uid, outlet.edge, seq, end=end, epoch=outlet.epoch))
            return
        key = f"{uid}/{outlet.edge}/{outlet.epoch}/{seq}"
        nbytes = self._connector.put(key, wire.encode(payload))
        self._news.refs.append(
            Ref(uid, outlet.edge, seq, end, key, nbytes, payload.specs(), outlet.epoch)
        )

    def _fetch(self, fetch: Fetch) -> None:
        ref = fetch.ref
        if ref.key is None:
            raise AdapterError(f"the ref of request {fetch.uid} names no payload")
        payload = wire.decode(self._connector.take(ref.key), expect=ref.fields)
        adapter = self._inputs.get(ref.edge)
        if adapter is None:
            raise AdapterError(f"the stage has no incoming edge '{ref.edge}'")
        plan = adapter.plan(fetch.uid, payload, fetch.params)
        if plan.rows_local:
            rows = cast("RowInputAdapter", adapter).take_rows(fetch.uid)
            if rows.ndim != 2 or len(rows) != len(plan.token_ids):
                raise AdapterError(
                    f"{len(plan.token_ids)} prompt positions, but rows of shape {tuple(rows.shape)}"
                )
            self._prompt_rows[fetch.uid] = rows
        self._news.planned.append((fetch.uid, plan))


def _wants_tensors(needs: OutputNeeds) -> bool:
    return needs.include_hidden or bool(needs.side_outputs)


def _make(name: str, context: StageContext) -> object:
    maker = load_object(name)
    if not callable(maker):
        raise AdapterError(f"'{name}' is not a class")
    return maker(context)
