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
from dataclasses import replace
from functools import partial
from typing import ParamSpec

from antiphon.connector.base import Connector
from antiphon.core.options import StageOptions
from antiphon.core.retry import RetryPolicy
from antiphon.core.tickets import Accepted, Ended, Fetch, StageNews, StageWork, Ticket
from antiphon.errors import AntiphonError
from antiphon.payload.adapters import StepRows
from antiphon.payload.kv import KvSnapshot
from antiphon.worker.capabilities import Capabilities
from antiphon.worker.chunks import Chunks
from antiphon.worker.guard import raised
from antiphon.worker.inlets import DecodeRows, Inlets, PromptRows
from antiphon.worker.kv_cache import KvCaches, KvCopy
from antiphon.worker.kv_sender import KvSender
from antiphon.worker.load import input_factories, output_factories
from antiphon.worker.outlets import Outlet, Sender
from antiphon.worker.producers import Producer, open_producer, wants_steps, wants_tensors
from antiphon.worker.rows import RowLog

P = ParamSpec("P")


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
        self._factories = output_factories(options, model)
        self._streams = {out.name: out.stream for out in options.outputs}
        cache_edges = (edge.name for edge in options.inputs if edge.kv)
        inputs = input_factories(options, model)
        self._inlets = Inlets(connector, inputs, embed_width, cache_edges)
        self._sender = Sender(connector, policy or RetryPolicy())
        self._kv = KvSender(connector, policy or RetryPolicy(), options.outputs)
        self._caches: KvCaches | None = None
        self._logs: dict[str, Producer] = {}  # those that want rows now
        self._orders: deque[Callable[[], None]] = deque()  # submitted, not carried out
        self._turn = threading.Lock()  # held by whoever carries orders out; for what follows
        self._producers: dict[tuple[str, int], Producer] = {}  # by uid and epoch
        self._news = StageNews()

    # --- orders -------------------------------------------------------------------------------

    def submit(self, work: StageWork) -> None:
        """Take one step's orders. What the step itself must know takes effect now."""
        for ticket in work.tickets:
            if (error := raised(self._open, ticket)) is not None:
                failed = Producer(ticket.uid, ticket.epoch, [], None)
                self._orders.append(partial(self._begin, failed))
                self.fail(ticket.uid, error)
        for ended in work.ended:
            log = self._logs.get(ended.uid)
            if log is not None and log.epoch == ended.epoch:
                del self._logs[ended.uid]
        copies = [self._kv.extract(ship, self._caches) for ship in work.ships]
        self._orders.append(partial(self._execute, work, copies))

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
        return [edge for edge, made in self._factories.items() if wants_tensors(made.needs)]

    @property
    def quiet_edges(self) -> list[str]:
        """Edges whose adapters want neither tensors nor tokens: they are told of ends alone."""
        return [edge for edge, made in self._factories.items() if not wants_steps(made.needs)]

    @property
    def side_outputs(self) -> frozenset[str]:
        """Names of the side outputs that any edge wants."""
        return frozenset(n for f in self._factories.values() for n in f.needs.side_outputs)

    def fail(self, uid: str, error: AntiphonError) -> None:
        """End this request: its outputs of a step could not be had."""
        self._orders.append(partial(self._fail, uid, error))

    def prompt_rows(self, uid: str) -> PromptRows | None:
        """What a planned prompt is made of; kept until the request is removed."""
        return self._inlets.prompt_rows.get(uid)

    def decode_rows(self, uid: str) -> DecodeRows | None:
        """The rows that the request's output tokens are computed with; None if it has none."""
        return self._inlets.decode_rows.get(uid)

    def cache(self, uid: str) -> KvSnapshot | None:
        """What a generation request attends to; kept until the request is removed."""
        return self._inlets.caches.kept.get(uid)

    def take_cache(self, uid: str) -> KvSnapshot | None:
        """What the request's own cache begins with, which is not kept any longer."""
        return self._inlets.caches.kept.pop(uid, None)

    @property
    def recomputed_caches(self) -> int:
        """Requests that were given token ids in place of a cache that was lost."""
        return self._inlets.caches.recomputed

    @property
    def has_decode_rows(self) -> bool:
        """Whether any request has such rows."""
        return bool(self._inlets.decode_rows)

    def attach_model(self, capabilities: Capabilities) -> None:
        """The model has been loaded: rows that arrive are checked against what it can do."""
        self._inlets.model = capabilities

    def attach_caches(self, caches: KvCaches) -> None:
        """The engine's cache has been made: caches can leave now, and its requests take them in."""
        self._caches = self._inlets.caches.receiver = caches

    def removed(self, uid: str) -> None:
        """Upstream has removed the request's state."""
        self._orders.append(partial(self._inlets.drop, uid))

    # --- checks -------------------------------------------------------------------------------

    def __len__(self) -> int:
        with self._turn:
            unsent = self._sender.num_unsent + self._kv.num_unsent
            return len(self._producers) + len(self._inlets) + unsent

    def check_integrity(self) -> None:
        """Raise AssertionError if the stores disagree with themselves or each other."""
        self._connector.check_integrity()
        with self._turn:
            self._inlets.check_integrity()
            self._sender.check_integrity()
            self._kv.check_integrity()
            for (uid, _), producer in self._producers.items():
                self._check(uid, producer)
            if not (self._orders or self._logs.keys() <= {uid for uid, _ in self._producers}):
                raise AssertionError("rows are collected for a request that has ended")

    def _check(self, uid: str, producer: Producer) -> None:
        if not (producer.outlets or producer.failed):
            raise AssertionError(f"request {uid} is kept without an edge")
        if producer.rows is not None:
            producer.rows.check_integrity()
        for outlet in producer.outlets:
            if outlet.unsent and not producer.failed and outlet not in self._sender:
                raise AssertionError(f"a chunk of {uid} is not stored, and nobody tries again")

    @property
    def connector(self) -> Connector:
        return self._connector

    # --- parts --------------------------------------------------------------------------------

    def _execute(self, work: StageWork, copies: Sequence[KvCopy | AntiphonError]) -> None:
        dropped = {(ended.uid, ended.epoch) for ended in work.ended if not ended.keep}
        for uid, accepted in work.tokens.items():
            if (uid, accepted.epoch) not in dropped:
                self._guard(uid, self._accept, uid, accepted)
        for ship, copy in zip(work.ships, copies, strict=True):
            producer = self._producers.get((ship.uid, ship.epoch))
            outlet = None if producer is None else producer.outlet(ship.edge)
            self._kv.ship(ship, copy, outlet, self._news)
        for ended in work.ended:
            self._guard(ended.uid, self._end, ended)
        chunks = self._inlets.chunks(work.fetches)
        for fetch in work.fetches:
            self._guard(fetch.uid, self._fetch, fetch, chunks)
        if work.discards:
            self._connector.delete(work.discards)
        if work.retry:
            self._retry()

    def _retry(self) -> None:
        """The shortest of all waits is over."""
        waits = (self._sender.shortest_wait_s, self._kv.shortest_wait_s)
        passed = min((wait for wait in waits if wait is not None), default=0.0)
        self._kv.retry(passed, self._news)
        for uid, error in self._sender.retry(passed, self._news).items():
            self._fail(uid, error)

    def _guard(self, uid: str, call: Callable[P, None], *args: P.args, **kw: P.kwargs) -> None:
        """Isolation boundary: whatever one request's adapter or payload raises ends only it."""
        if (error := raised(call, *args, **kw)) is not None:
            self._fail(uid, error)

    def _fail(self, uid: str, error: AntiphonError) -> None:
        for (owner, _), producer in self._producers.items():
            if owner == uid:
                if producer.failed:
                    return  # said already: a step that was in flight then fails as well
                producer.failed = True
        self._drop(uid)
        self._news.failed.append((uid, error.to_wire()))

    def _open(self, ticket: Ticket) -> None:
        producer = open_producer(ticket, self._factories, self._streams)
        if producer.rows is not None:
            self._logs[ticket.uid] = producer
        self._orders.append(partial(self._begin, producer))

    def _begin(self, producer: Producer) -> None:
        self._producers[producer.uid, producer.epoch] = producer

    def _accept(self, uid: str, accepted: Accepted) -> None:
        producer = self._producers.get((uid, accepted.epoch))
        if producer is None or producer.failed:
            return
        # The last accepted token has not been forwarded: its row does not exist yet.
        rows = producer.release(accepted.num_tokens - 1)
        for outlet in producer.outlets:
            self._offer_rows(outlet, rows)
            if outlet.needs.requires_token_updates and not outlet.over:
                made = outlet.adapter.on_tokens(accepted.token_ids)
                self._sender.emit(outlet, made, self._news)

    def _offer_rows(self, outlet: Outlet, rows: Sequence[StepRows]) -> None:
        if wants_tensors(outlet.needs) and not outlet.over:
            for step in rows:
                if not outlet.needs.include_hidden:
                    step = replace(step, hidden=None)  # noqa: PLW2901  another edge asked for it
                self._sender.emit(outlet, outlet.adapter.on_rows(step), self._news)

    def _end(self, ended: Ended) -> None:
        producer = self._producers.pop((ended.uid, ended.epoch), None)
        if not ended.keep:
            self._drop(ended.uid)
        if producer is None or producer.failed or not ended.keep:
            return
        rows = producer.release(ended.num_tokens - 1)
        for outlet in producer.outlets:
            self._offer_rows(outlet, rows)
            if outlet.over:
                continue
            if outlet.edge in self._kv:  # without its cache there is nothing to be had
                outlet.kept.clear()
                self._sender.end(outlet, [], self._news)
            else:
                self._sender.end(outlet, outlet.adapter.on_end(), self._news)

    def _drop(self, uid: str) -> None:
        self._sender.drop(uid)
        self._kv.drop(uid, self._news)

    def _fetch(self, fetch: Fetch, chunks: Chunks) -> None:
        if (arrived := self._inlets.fetch(fetch, chunks)) is not None:
            self._news.arrived.append(arrived)
